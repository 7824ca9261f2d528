"""Where the time of a forward pass goes, op by op: what each does, and what its threads wait for.

The wall clock is divided, not the threads' time: a moment belongs to the ops that run in it, in equal shares to the
threads that run them, so that the times of all ops, and of the moments in which none runs, add up to the whole. A
thread that has nothing to do meanwhile is waiting for these ops: too few parts, or parts of unequal length.
"""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from localinfer.engine.engine import Engine
from localinfer.engine.stamps import Clock, Stamps
from localinfer.plan.plan import Op
from localinfer.plan.work import NOTHING_TO_DO, Amount

Progress = Callable[[str], None]
RUNS = 3
LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of the wall clock; the thread-seconds that were idle meanwhile, a thread; how often; what was done."""

    seconds: float = 0.0
    waiting: float = 0.0
    calls: int = 0
    amount: Amount = NOTHING_TO_DO

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.seconds + other.seconds,
            self.waiting + other.waiting,
            self.calls + other.calls,
            self.amount + other.amount,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """One run of the plan: `tokens` behind `past` others, and how long it took, in seconds of the wall clock."""

    tokens: int
    past: int
    seconds: float
    stamps: Stamps


@dataclass(frozen=True, slots=True)
class Phase:
    """A prompt, or an answer: what each op of the plan took, and the seconds in which none ran."""

    name: str
    tokens: int
    threads: int
    seconds: float
    ops: Sequence[Spent]
    between: float  # from the first op to the last: handing over
    outside: float  # before and after: Python, and threads that wake up
    batches: Sequence[Batch]


@dataclass(frozen=True, slots=True)
class Profile:
    """The phases of a run, the plan's ops, and the length of a tick of the clock."""

    ops: Sequence[Op]
    phases: Sequence[Phase]
    seconds_per_tick: float


def profile(engine: Engine, prompt: Sequence[int], answer: Sequence[int], progress: Progress) -> Profile:
    """Evaluate a prompt and an answer, once to warm up, then RUNS times; of each, the quickest one counts.

    Raises ContextOverflow when both together do not fit, LocalInferError where there is no clock.
    """
    clock = Clock()
    engine.program.keep_stamps()
    tokens = {"prompt": list(cut(prompt, engine.plan.batch)), "answer": list(cut(answer, 1))}
    runs: dict[str, list[list[Batch]]] = {name: [] for name in tokens}
    for run in range(RUNS + 1):
        engine.reset()
        for name in tokens:
            progress(f"{name}, run {run} of {RUNS}")
            runs[name].append([evaluated(engine, batch) for batch in tokens[name]])
    tick = clock.seconds_per_tick()
    quickest = {name: min(found[1:], key=seconds) for name, found in runs.items()}
    phases = [phase(engine, name, batches, tick) for name, batches in quickest.items() if batches]
    return Profile(engine.plan.ops, phases, tick)


def seconds(batches: Sequence[Batch]) -> float:
    """Of all batches together."""
    return sum(batch.seconds for batch in batches)


def cut(tokens: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Neighbours, at most `size` at a time."""
    return (tokens[first : first + size] for first in range(0, len(tokens), size))


def evaluated(engine: Engine, tokens: Sequence[int]) -> Batch:
    """Run one batch."""
    past, begin = engine.n_past, time.perf_counter()
    engine.evaluate(tokens)
    return Batch(len(tokens), past, time.perf_counter() - begin, engine.program.stamps())


def phase(engine: Engine, name: str, batches: Sequence[Batch], tick: float) -> Phase:
    """The sum of batches."""
    ops = [Spent()] * len(engine.plan.ops)
    between = spans = 0.0
    for batch in batches:
        taken, idle = divided(batch.stamps, engine.program.threads_for(batch.tokens))
        amounts = engine.plan.amounts(batch.tokens, batch.past, 1)
        for op, (running, waiting) in taken.items():
            ops[op] += Spent(running * tick, waiting * tick, 1, amounts[op])
        between += idle * tick
        spans += int(batch.stamps.end.max() - batch.stamps.begin.min()) * tick
    tokens, whole = sum(batch.tokens for batch in batches), seconds(batches)
    threads = engine.program.threads_for(batches[0].tokens)
    return Phase(name, tokens, threads, whole, ops, between, max(0.0, whole - spans), batches)


def divided(stamps: Stamps, threads: int) -> tuple[dict[int, tuple[float, float]], float]:
    """For each op the ticks that it ran and that threads waited for it; and the ticks in which none ran."""
    running: dict[int, float] = defaultdict(float)
    waiting: dict[int, float] = defaultdict(float)
    idle, busy, active, before = 0, 0, Counter[int](), 0
    moments = [(tick, op, 1) for tick, op in zip(stamps.begin.tolist(), stamps.op.tolist(), strict=True)]
    moments += [(tick, op, -1) for tick, op in zip(stamps.end.tolist(), stamps.op.tolist(), strict=True)]
    for tick, op, change in sorted(moments):
        if busy:
            for each, count in active.items():
                share = (tick - before) * count / busy
                running[each] += share
                waiting[each] += share * (threads - busy) / threads
        elif running:
            idle += tick - before
        before, busy = tick, busy + change
        active[op] += change
        if not active[op]:
            del active[op]
    return {op: (running[op], waiting[op]) for op in running}, idle


# --- what ops have in common ---


def kind(op: Op) -> str:
    """What an op is in every layer, by the name that tensors have in the file: attn_q, ffn_down, attention."""
    name = LAYER.sub("", op.name).removesuffix(".weight")
    return "output" if name == "token_embd" and op.work.token.macs else name  # a file may have one tensor for both


def layer(op: Op) -> str:
    """The block that an op is in; what is before and behind the blocks has one name."""
    found = LAYER.match(op.name)
    return f"layer {found[1]}" if found else "outside of layers"


def grouped(profile: Profile, phase: Phase, name_of: Callable[[Op], str]) -> dict[str, Spent]:
    """The sums over all ops of a name, in the order of the plan; without those that never ran."""
    sums: dict[str, Spent] = {}
    for op, spent in zip(profile.ops, phase.ops, strict=True):
        if spent.calls:
            sums[name_of(op)] = sums.get(name_of(op), Spent()) + spent
    return sums
