"""Profile of a forward pass: the wall-clock time of each op, and how long threads wait for it.

Wall-clock time is divided, not thread time: each moment is attributed to the ops that run in it, in proportion to the
threads that run them. So the times of all ops and of the moments without any op add up to the total. A thread that is
idle meanwhile waits for these ops: they have too few chunks, or chunks of unequal length.
"""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from localinfer.graph.ops.cost import NO_COST, Cost
from localinfer.graph.ops.op import Op
from localinfer.runtime.engine import Engine
from localinfer.runtime.timestamps import Clock, TimestampBuffer, Timestamps

Progress = Callable[[str], None]
RUNS = 3
LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class OpTime:
    """Wall-clock seconds of an op, idle seconds per thread during it, number of runs, and cost of the work."""

    seconds: float = 0.0
    waiting: float = 0.0
    calls: int = 0
    cost: Cost = NO_COST

    def __add__(self, other: "OpTime") -> "OpTime":
        return OpTime(
            self.seconds + other.seconds,
            self.waiting + other.waiting,
            self.calls + other.calls,
            self.cost + other.cost,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """One run of the compute graph on `tokens` new tokens, after `n_past` cached ones. `seconds` is wall-clock time."""

    tokens: int
    n_past: int
    seconds: float
    timestamps: Timestamps


@dataclass(frozen=True, slots=True)
class Phase:
    """Prefill or decode: the time of each op of the graph, and the seconds in which none ran."""

    name: str
    tokens: int
    threads: int
    seconds: float
    ops: Sequence[OpTime]
    between: float  # from the first op to the last: synchronization
    outside: float  # before and after: Python, and thread wake-up
    batches: Sequence[Batch]


@dataclass(frozen=True, slots=True)
class Profile:
    """The phases of a run, the ops of the graph, and the seconds per tick of the clock."""

    ops: Sequence[Op]
    phases: Sequence[Phase]
    seconds_per_tick: float


def profile(engine: Engine, prompt: Sequence[int], decoded: Sequence[int], progress: Progress) -> Profile:
    """Evaluate a prompt and an answer, once to warm up, then RUNS times; the fastest run of each phase counts.

    Raises ContextOverflowError if both together exceed the context, LocalInferError if there is no clock.
    """
    clock = Clock()
    tokens = {"prefill": list(split(prompt, engine.graph.batch)), "decode": list(split(decoded, 1))}
    runs: dict[str, list[list[Batch]]] = {name: [] for name in tokens}
    with engine.compiled_graph.recorded_timestamps() as buffer:
        for run in range(RUNS + 1):
            engine.reset()
            for name in tokens:
                progress(f"{name}, run {run} of {RUNS}")
                runs[name].append([run_batch(engine, batch, buffer) for batch in tokens[name]])
    tick = clock.seconds_per_tick()
    fastest = {name: min(batches_of_runs[1:], key=seconds) for name, batches_of_runs in runs.items()}
    phases = [summarize_phase(engine, name, batches, tick) for name, batches in fastest.items() if batches]
    return Profile(engine.graph.ops, phases, tick)


def seconds(batches: Sequence[Batch]) -> float:
    """Return the total time of some batches."""
    return sum(batch.seconds for batch in batches)


def split(tokens: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Yield consecutive slices of at most `size` tokens."""
    return (tokens[first : first + size] for first in range(0, len(tokens), size))


def run_batch(engine: Engine, tokens: Sequence[int], buffer: TimestampBuffer) -> Batch:
    """Evaluate one batch and return its timestamps."""
    n_past, begin = engine.n_past, time.perf_counter()
    engine.evaluate(tokens)
    return Batch(len(tokens), n_past, time.perf_counter() - begin, buffer.take())


def summarize_phase(engine: Engine, name: str, batches: Sequence[Batch], tick: float) -> Phase:
    """Return the sums over batches."""
    ops = [OpTime()] * len(engine.graph.ops)
    between = spans = 0.0
    for batch in batches:
        taken, idle = divide_time(batch.timestamps, engine.compiled_graph.threads_for(batch.tokens))
        costs = engine.graph.op_costs(batch.tokens, batch.n_past, 1)
        for op, (running, waiting) in taken.items():
            ops[op] += OpTime(running * tick, waiting * tick, 1, costs[op])
        between += idle * tick
        spans += int(batch.timestamps.end.max() - batch.timestamps.begin.min()) * tick
    tokens, whole = sum(batch.tokens for batch in batches), seconds(batches)
    threads = engine.compiled_graph.threads_for(batches[0].tokens)
    return Phase(name, tokens, threads, whole, ops, between, max(0.0, whole - spans), batches)


def divide_time(timestamps: Timestamps, threads: int) -> tuple[dict[int, tuple[float, float]], float]:
    """Return, for each op, its ticks and the ticks that threads waited for it; and the ticks in which no op ran."""
    running: dict[int, float] = defaultdict(float)
    waiting: dict[int, float] = defaultdict(float)
    idle, busy, active, before = 0, 0, Counter[int](), 0
    moments = [(tick, op, 1) for tick, op in zip(timestamps.begin.tolist(), timestamps.op.tolist(), strict=True)]
    moments += [(tick, op, -1) for tick, op in zip(timestamps.end.tolist(), timestamps.op.tolist(), strict=True)]
    for tick, op, change in sorted(moments):
        if busy:
            for each, count in active.items():
                duration = (tick - before) * count / busy
                running[each] += duration
                waiting[each] += duration * (threads - busy) / threads
        elif running:
            idle += tick - before
        before, busy = tick, busy + change
        active[op] += change
        if not active[op]:
            del active[op]
    return {op: (running[op], waiting[op]) for op in running}, idle


# --- grouping ---


def op_kind(op: Op) -> str:
    """Return the name of an op without its layer, as tensors are named in the file: attn_q, ffn_down, attention."""
    name = LAYER.sub("", op.name).removesuffix(".weight")
    return "output" if name == "token_embd" and op.cost.token.macs else name  # tied embeddings


def op_layer(op: Op) -> str:
    """Return the layer of an op; one name for all ops outside of layers."""
    match = LAYER.match(op.name)
    return f"layer {match[1]}" if match else "outside of layers"


def group_ops(profile: Profile, phase: Phase, name_of: Callable[[Op], str]) -> dict[str, OpTime]:
    """Return the sums over all ops with the same name, in the order of the graph, without those that never ran."""
    sums: dict[str, OpTime] = {}
    for op, spent in zip(profile.ops, phase.ops, strict=True):
        if spent.calls:
            sums[name_of(op)] = sums.get(name_of(op), OpTime()) + spent
    return sums
