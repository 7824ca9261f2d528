"""A model's forward pass, ready to run: its plan in memory, its kernels compiled or loaded, its threads.

Any sequence can be run through it. Knows batches of tokens, and nothing of what was before them.
"""

from collections.abc import Callable, Sequence, Sized
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from localinfer import architectures, paths
from localinfer.engine import machine
from localinfer.engine.stamps import StampedMemory, Stamps
from localinfer.engine.team import Team, Watch, Work
from localinfer.errors import NotEnoughMemory
from localinfer.files.gguf import GGUF
from localinfer.options import Options, Precision, guessers_named
from localinfer.plan.attention import Context
from localinfer.plan.buffers import Buffer
from localinfer.plan.keys import Keys
from localinfer.plan.memory.ring import whole_blocks
from localinfer.plan.plan import FEW, Plan
from localinfer.plan.recorder import Recorder
from quant.jit import loader
from quant.jit.kernel import Kernel
from quant.jit.loader import Progress

Floats = NDArray[np.float32]

LOGITS_BYTES = 32 << 20  # rows of logits that are computed at a time take about so much
LARGEST_DEFAULT_CONTEXT, SMALLEST_DEFAULT_CONTEXT = 32_768, 2048
BIDIRECTIONAL = ("gemma-embedding",)  # whose files do not say so
PASSES: dict[Precision, int] = {"fast": 1, "high": 2}
AUTO: dict[bool, Precision] = {True: "fast", False: "high"}  # by whether it is causal
EXECUTE, EXECUTE_STAMPED = (
    Kernel(
        "localinfer.ops.execute",
        "execute",
        ("first", "end", "program", "sync", "stop"),
        constants=(("few", FEW), ("stamps", stamps)),
    )
    for stamps in (0, 1)
)


class Program:
    """`recorder` and `plan` are what was recorded, to look at; `files` the model's, and that of a head beside it.

    Raises LocalInferError for a file without sense, Unsupported for one that cannot be run, NotEnoughMemory when what
    it needs beside the weights does not fit.
    """

    def __init__(
        self, f: GGUF, options: Options, progress: Progress | None = None, head: GGUF | None = None
    ) -> None:
        self.files = (f, head) if head else (f,)
        self.recorder = record_within(machine.available_memory(), f, options, head)
        self.plan = self.recorder.plan
        self.n_ctx = self.recorder.context.n_ctx
        self.n_vocab = self.recorder.n_vocab
        require_memory(f, self.plan.nbytes, self.n_ctx)
        addresses, self.warnings = loader.addresses([EXECUTE, *self.plan.kernels], paths.jit_dir(), progress)
        self._records = self.plan.ready(addresses)
        self._stop = self.plan.stop.view(np.int64)
        self._works: list[Work] = []
        self._team = Team(addresses[EXECUTE], self._records, self._stop, self.plan.scratches, self._works)

    # --- batches ---

    @property
    def head(self) -> tuple[int, int]:
        """The ops of the output layer: the first one, and the one behind the last."""
        return self.recorder.head

    def ways(self, *, logits: bool) -> list[tuple[int, int]]:
        """The ops that compute a batch, with the output layer or without it: from the first one of each stretch to the
        one behind its last. A head that looks further ahead takes in its keys."""
        (start, end), ahead = self.head, self.recorder.ahead
        if logits:
            return [(0, ahead.look if ahead else end)]
        return [(0, start), *([(ahead.start, ahead.look)] if ahead else [])]

    @property
    def precision(self) -> Precision:
        """How activations are rounded: never "auto"."""
        return next(name for name, passes in PASSES.items() if passes == self.plan.passes)

    @property
    def predicts(self) -> bool:
        """Whether it has an output layer: an encoder has none."""
        return self.recorder.logits_buffer is not None

    def place(self, ids: NDArray[np.int32], positions: NDArray[np.int64], types: NDArray[np.int32] | int = 0) -> None:
        """Put a batch of tokens where the ops find it, with their positions in their texts, and the part of a pair that
        each is of.

        Raises LocalInferError when the file's weights are no longer those that it was opened with.
        """
        for f in self.files:
            f.check_unchanged()
        r, count = self.recorder, len(ids)
        self.plan.tokens.set(count)
        r.ids.view(np.int32)[:count] = ids
        r.types.view(np.int32)[:count] = types
        r.attention.positions.view(np.int32)[:count] = positions
        for table in r.attention.tables.values():
            table.fill(positions, self.n_ctx)
        for blocks in r.attention.block_tables.values():
            blocks.fill(positions)

    def pick(self, rows: NDArray[np.int32]) -> Floats:
        """Have the output layer compute these tokens of the batch; where their logits will be."""
        self.plan.picked.set(len(rows))
        self.recorder.picked_rows.view(np.int32)[: len(rows)] = rows
        return floats_of(self.recorder.logits_buffer, len(rows))

    def states(self, rows: NDArray[np.int32]) -> Floats:
        """What these tokens of the batch have become behind all layers, float32 (len(rows), n); until the next call."""
        self.pick(rows)
        self.run(self.recorder.head_start, self.recorder.states_end, len(rows))
        return floats_of(self.recorder.states_buffer, len(rows))

    def further(self, before: Sequence[Floats | float]) -> tuple[Floats, Floats]:
        """The logits of the head that looks further ahead, behind each token of the batch, which are of different
        sequences, (tokens, n_vocab), and the states that it makes of them, (tokens, n): by the states of the tokens
        `before` them. They are valid until the next call."""
        ahead, count = self.recorder.ahead, len(before)
        assert ahead is not None
        for row, state in zip(floats_of(ahead.before, count), before, strict=True):
            row[:] = state
        ahead.guessing.set(count)
        ahead.picked.view(np.int32)[:count] = np.arange(count)
        self.run(ahead.keys, len(self.plan.ops), count)
        logits = floats_of(ahead.logits, count)
        if ahead.ids is not None:
            some, logits = logits, np.full((count, self.n_vocab), -np.inf, np.float32)
            logits[:, ahead.ids] = some
        return logits, floats_of(ahead.state, count)

    def residual(self, tokens: int) -> Floats:
        """The residual stream of a batch of so many tokens."""
        return floats_of(self.recorder.residual, tokens)

    def threads_for(self, tokens: int) -> int:
        """How many threads compute a batch of so many tokens."""
        return self.plan.threads if tokens <= FEW else self.plan.threads_batch

    def meanwhile(self, left: Sized, work: Callable[[], None]) -> None:
        """Have this done, as long as there is something left, at the beginning of each run by the thread that waits for
        its end: it delays nothing."""
        if all(work != other for _, other in self._works):
            self._works.append((left, work))

    def idle(self) -> None:
        """Do what is to be done by who would only wait."""
        for _, work in self._works:
            work()

    def run(self, first: int, end: int, tokens: int, watch: Watch | None = None) -> None:
        """Run the ops first .. end - 1 for a batch of so many tokens; see `Team.run` for `watch`."""
        self._team.run(first, end, self.threads_for(tokens), watch)

    # --- threads ---

    def keep_stamps(self) -> None:
        """From now on, have every part of an op leave a time stamp, for `stamps` to take."""
        addresses, _ = loader.addresses([EXECUTE_STAMPED], paths.jit_dir())
        self._stamped = StampedMemory(self.plan.members, self.plan.scratch_bytes)
        self._team.close()
        scratches = self._stamped.scratches
        self._team = Team(addresses[EXECUTE_STAMPED], self._records, self._stop, scratches, self._works)

    def stamps(self) -> Stamps:
        """The stamps of what was run since they were last taken."""
        return self._stamped.taken(self._records)

    def close(self) -> None:
        """End the threads."""
        self._team.close()


def floats_of(buffer: Buffer | None, rows: int) -> Floats:
    """So many rows of a buffer; none of one that there is not."""
    if buffer is None:
        return np.zeros((0, 0), np.float32)
    found: Floats = buffer.floats.view(np.float32).reshape(-1, buffer.n)[:rows]
    return found


def record_within(available: int, f: GGUF, options: Options, head: GGUF | None = None) -> Recorder:
    """As `record`; where nobody has chosen a context, half of it as often as it takes to fit into memory, beside the
    weights that are not there yet."""
    recorder = record(f, options, head)
    mapped = [each for each in (f, head) if each and not each.in_memory]
    weights = sum(tensor.nbytes for each in mapped for tensor in each.tensors.values())
    while not options.ctx_size and recorder.context.n_ctx > SMALLEST_DEFAULT_CONTEXT:
        if weights + recorder.plan.nbytes <= available:
            break
        n_ctx = max(recorder.context.n_ctx // 2, SMALLEST_DEFAULT_CONTEXT)
        recorder = record(f, replace(options, ctx_size=n_ctx), head)
    return recorder


def record(f: GGUF, options: Options, head: GGUF | None = None) -> Recorder:
    """The model's forward pass, recorded and checked; nothing is allocated or compiled. A `head` beside it looks
    further ahead, instead of its own one."""
    write_down = architectures.find(f, options.architecture)
    keys = Keys(f)
    n_ctx = options.ctx_size or min(keys.count("context_length"), LARGEST_DEFAULT_CONTEXT)
    causal = keys.flag("attention.causal", keys.architecture not in BIDIRECTIONAL)
    wraps = options.ctx_policy == "ring" and causal
    sinks = sinks_for(options.keep, n_ctx) if wraps else 0
    batch = max(1, min(options.batch_size, options.ubatch_size, n_ctx)) if causal else n_ctx
    embedding = f.tensors.get("token_embd.weight")
    n_vocab = embedding.shape[0] if embedding is not None else 1
    sequences = min(options.parallel, batch) if causal else 1
    outputs = max(sequences, min(batch, LOGITS_BYTES // (4 * max(1, n_vocab)))) if causal else batch
    threads = options.threads or machine.default_threads()
    ahead = "ahead" in guessers_named(options.spec_type)
    precision = AUTO[causal] if options.precision == "auto" else options.precision
    plan = Plan(batch, outputs, threads, options.threads_batch or threads, PASSES[precision], sequences)
    own = ahead and head is None
    context = Context(n_ctx, sinks, wraps, options.cache_type_k, options.cache_type_v, causal, own)
    recorder = Recorder(f, keys, plan, context)
    if head and ahead and causal:
        record_beside(recorder, write_down, head)
    else:
        write_down(recorder)
    recorder.finish()
    return recorder


def record_beside(recorder: Recorder, write_down: architectures.Record, head: GGUF) -> None:
    """Record the forward pass of a model, and that of a head beside it."""
    from localinfer.plan.eagle3 import feature_blocks, record_eagle3

    own = Recorder(head, Keys(head), recorder.plan, recorder.context)
    recorder.keep_inputs(feature_blocks(own, recorder))
    write_down(recorder)
    recorder.ahead = record_eagle3(own, recorder)


def sinks_for(keep: int, n_ctx: int) -> int:
    """How many first tokens stay where a ring wraps: whole blocks of them, where these leave room for others.

    So each token has the cell that it has in a ring that never wraps: until this one does, all sums are the same bits.
    """
    blocks = whole_blocks(keep)
    return blocks if blocks <= n_ctx // 2 else min(keep, n_ctx // 2)


def kernels(f: GGUF, options: Options) -> list[Kernel]:
    """All that a program for this file has to have compiled, each once."""
    plan = record(f, options).plan
    return list(dict.fromkeys([EXECUTE, *plan.kernels]))


def memory_plan(f: GGUF, options: Options) -> dict[str, int]:
    """The bytes that running this file takes: the weights, mapped or as the whole file; the cache; the scratch."""
    recorder = record(f, options)
    kv = recorder.cache_bytes
    weights = sum(tensor.nbytes for tensor in f.tensors.values()) if options.mmap else f.size
    return {"weights": weights, "kv": kv, "scratch": recorder.plan.nbytes - kv}


def require_memory(f: GGUF, needed: int, n_ctx: int) -> None:
    """Raise NotEnoughMemory before anything is taken that the machine does not have."""
    available = machine.available_memory()
    if needed > available:
        what = f"{n_ctx} tokens need {needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are available"
        raise f.error("context", f"{what}; --ctx-size sets a smaller one", NotEnoughMemory)
