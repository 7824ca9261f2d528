"""The engine: token ids in, logits out. Knows no text.

It records the model's plan, has the kernels compiled or loaded, and then feeds batches of tokens through the team.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from localinfer import architectures, paths
from localinfer.engine import machine
from localinfer.engine.stamps import StampedMemory, Stamps
from localinfer.engine.team import Team
from localinfer.errors import ContextOverflow, LocalInferError, NotEnoughMemory, UsageError
from localinfer.files.gguf import GGUF, Tensor
from localinfer.ops.layout import EVERYTHING
from localinfer.options import Options
from localinfer.plan.config import read_config
from localinfer.plan.plan import FEW, Plan
from localinfer.plan.recorder import Context, Recorder
from localinfer.plan.work import NOTHING_TO_DO, Amount
from quant.jit import loader
from quant.jit.kernel import Kernel

Progress = Callable[[str, int, int], None]
Logits = NDArray[np.float32]
Tokens = Sequence[int] | Iterator[int] | NDArray[np.int32]

LOGITS_BYTES = 32 << 20  # rows of logits that are computed at a time take about so much
LIBRARIES_BYTES = 192 << 20  # of address space: LLVM, and what cuts texts into tokens
LARGEST_DEFAULT_CONTEXT = 32_768
LAST_POSITION = EVERYTHING  # further ones would not fit in what kernels count with
DEFAULTS = Options()
PASSES = {"fast": 1, "high": 2}
NO_ROWS = np.zeros(0, np.int32)
EXECUTE, EXECUTE_STAMPED = (
    Kernel(
        "localinfer.ops.execute",
        "execute",
        ("first", "end", "program", "sync", "stop"),
        constants=(("few", FEW), ("stamps", stamps)),
    )
    for stamps in (0, 1)
)


class Engine:
    """A model ready to run: its weights in the file's map, its cache, its threads.

    Raises LocalInferError for a file without sense, Unsupported for one that cannot be run, NotEnoughMemory when the
    cache and the scratch do not fit.

    One thread at a time computes: it holds `turn`, and others wait. Who needs the cache to stay as it is for longer
    than a call holds it, too.
    """

    n_past: int  # tokens in the cache
    _furthest: int  # tokens that were in the cache since it was last empty

    def __init__(self, f: GGUF, options: Options, progress: Progress | None = None) -> None:
        self.file = f
        self.turn = threading.RLock()
        self._closed = False
        self._recorder = record(f, options)
        self.config, self._plan = self._recorder.config, self._recorder.plan
        self.threads, self.threads_batch = self._plan.threads, self._plan.threads_batch
        self.context_length = self.config.context_length
        self.n_ctx = self._recorder.context.n_ctx
        self.policy = options.ctx_policy
        assert self._recorder.logits_buffer is not None
        self.n_vocab = self._recorder.logits_buffer.n
        require_memory(f, self._plan.nbytes, self.n_ctx)
        addresses, self.warnings = loader.addresses([EXECUTE, *self._plan.kernels], paths.jit_dir(), progress)
        self._program = self._plan.ready(addresses)
        self._stop = self._plan.stop.view(np.int64)
        self._team = Team(addresses[EXECUTE], self._program, self._stop, self._plan.scratches)
        self.reset()

    # --- tokens in, logits out ---

    def evaluate(self, tokens: Tokens, progress: Progress | None = None) -> Logits:
        """The logits after the last of `tokens`, float32 (n_vocab,); valid until the next call.

        The tokens are appended to the cache. Raises ContextOverflow when they do not fit and the policy is to stop;
        KeyboardInterrupt leaves in the cache what was whole batches, and `n_past` says how much that is.
        """
        with self.turn:
            ids = self._checked(tokens)
            last = (len(ids) - 1) // self._plan.batch * self._plan.batch
            for first in range(0, last, self._plan.batch):
                if progress:
                    progress("prefill", first, len(ids))
                self._feed(ids[first : first + self._plan.batch])
            if progress:
                progress("prefill", last, len(ids))
            logits = self._feed(ids[last:], np.array([len(ids) - 1 - last], np.int32))
            if progress:
                progress("prefill", len(ids), len(ids))
            return logits.reshape(-1)

    def logits(self, tokens: Tokens) -> Logits:
        """The logits after each of `tokens`, float32 (len(tokens), n_vocab); appends them to the cache."""
        with self.turn:
            ids = self._checked(tokens)
            result = np.empty((len(ids), self.n_vocab), np.float32)
            row = 0
            for part in self.logits_in_parts(ids):
                result[row : row + len(part)] = part
                row += len(part)
            return result

    def logits_in_parts(self, tokens: Tokens, skip: int = 0) -> Iterator[Logits]:
        """The logits after each of `tokens` but the first `skip`, some rows at a time: each part until the next one.

        Appends all tokens to the cache, provided that all parts are taken.
        """
        ids = self._checked(tokens)
        for first in range(0, len(ids), self._plan.batch):
            batch = ids[first : first + self._plan.batch]
            self._feed(batch)
            for rows in self._rows_of(batch, max(0, skip - first)):
                logits = self._pick(rows)
                self._run(self._recorder.head_start, len(self._plan.ops), len(rows))
                yield logits

    def inputs(self, tokens: Tokens, *, head: bool = False) -> Iterator[tuple[Sequence[Tensor], NDArray[np.float32]]]:
        """What the weights of all layers, and of the output layer for `head`, are multiplied with while `tokens` pass.

        Weights that share an input come together, with some of its rows, float32 (rows, n_in): of a batch, and in the
        output layer of a part of it. They are valid until the next ones. Appends all tokens to the cache.
        """
        ids = self._checked(tokens)
        for first in range(0, len(ids), self._plan.batch):
            batch = ids[first : first + self._plan.batch]
            self._place(batch)
            yield from self._inputs(0, self._recorder.head_start, len(batch))
            self.n_past += len(batch)
            for rows in self._rows_of(batch) if head else ():
                self._pick(rows)
                yield from self._inputs(self._recorder.head_start, len(self._plan.ops), len(rows))

    def _inputs(
        self, first: int, end: int, tokens: int, *, whole: bool = True
    ) -> Iterator[tuple[Sequence[Tensor], NDArray[np.float32]]]:
        """Run some of the ops, and stop before each stage with products to look at what goes into them.

        Those from the last of these stages on are run only if it shall be done as a `whole`.
        """
        within = [product for product in self._plan.products if first <= product.stage < end]
        for (stage, x), products in groupby(within, key=attrgetter("stage", "x")):
            self._run(first, stage, tokens)
            first = stage
            yield [product.weight for product in products], x.floats.view(np.float32).reshape(-1, x.n)[:tokens]
        if whole:
            self._run(first, end, tokens)

    # --- one block after the other, over a text that begins at position 0 and fits in a batch ---

    def embedded(self, tokens: Tokens) -> NDArray[np.float32]:
        """The residual stream before the first block, float32 (len(tokens), n)."""
        self.reset()
        ids = self._checked(tokens)
        self._place(ids)
        self._run(0, self._recorder.block_starts[0], len(ids))
        return self._residual(len(ids)).copy()

    def run_block(self, number: int, x: NDArray[np.float32]) -> None:
        """Put into x, the residual stream before a block, what it is behind it."""
        self._begin(x)
        self._run(*self._recorder.block(number), len(x))
        x[:] = self._residual(len(x))

    def inputs_of_block(
        self, number: int, x: NDArray[np.float32]
    ) -> Iterator[tuple[Sequence[Tensor], NDArray[np.float32]]]:
        """As `inputs`, of one block, before which the residual stream is x."""
        self._begin(x)
        yield from self._inputs(*self._recorder.block(number), len(x), whole=False)

    def inputs_of_head(self, x: NDArray[np.float32]) -> Iterator[tuple[Sequence[Tensor], NDArray[np.float32]]]:
        """As `inputs`, of the output layer, before which the residual stream is x."""
        self._begin(x)
        for rows in self._rows_of(np.arange(len(x), dtype=np.int32)):
            self._pick(rows)
            yield from self._inputs(self._recorder.head_start, len(self._plan.ops), len(rows), whole=False)

    def _begin(self, x: NDArray[np.float32]) -> None:
        """Have a residual stream where the blocks find it, and nothing in the cache."""
        assert len(x) <= self._plan.batch
        self.reset()
        self._place(np.zeros(len(x), np.int32))
        self._residual(len(x))[:] = x

    def _residual(self, tokens: int) -> NDArray[np.float32]:
        x = self._recorder.residual
        assert x is not None
        rows: NDArray[np.float32] = x.floats.view(np.float32).reshape(-1, x.n)[:tokens]
        return rows

    def _checked(self, tokens: Tokens) -> NDArray[np.int32]:
        """The ids as an array: at least one, each within the vocabulary, and room for all."""
        self.require_open()
        ids = np.asarray(list(tokens) if isinstance(tokens, Iterator) else tokens)  # numpy takes no iterators
        if ids.ndim != 1 or not len(ids) or not np.issubdtype(ids.dtype, np.integer):
            raise UsageError("tokens: at least one token id is needed, as a flat list of integers")
        if ids.min() < 0 or ids.max() >= self.n_vocab:
            raise UsageError(f"tokens: an id is outside of the vocabulary, 0 to {self.n_vocab - 1}")
        if self.policy == "stop" and self.n_past + len(ids) > self.n_ctx:
            raise ContextOverflow(
                f"context is full: {self.n_past} + {len(ids)} tokens do not fit in {self.n_ctx}; "
                "--ctx-size sets a larger one, --ctx-policy ring forgets the oldest"
            )
        if self.n_past + len(ids) > LAST_POSITION:
            raise ContextOverflow(f"context is full: positions end at {LAST_POSITION}")
        return ids.astype(np.int32)

    def _rows_of(self, batch: NDArray[np.int32], skip: int = 0) -> Iterator[NDArray[np.int32]]:
        """The numbers of a batch's tokens but the first `skip`, as many at a time as the output layer takes."""
        for start in range(skip, len(batch), self._plan.outputs):
            yield np.arange(start, min(start + self._plan.outputs, len(batch)), dtype=np.int32)

    def _feed(self, ids: NDArray[np.int32], rows: NDArray[np.int32] | None = None) -> Logits:
        """Run one batch through all layers; and through the output layer too, for these of its tokens, if any."""
        self._place(ids)
        logits = self._pick(NO_ROWS if rows is None else rows)
        self._run(0, self._recorder.head_start if rows is None else len(self._plan.ops), len(ids))
        self.n_past += len(ids)
        return logits

    def _place(self, ids: NDArray[np.int32]) -> None:
        """Put a batch where the ops find it, behind the tokens in the cache.

        Raises LocalInferError when the file's weights are no longer those that it was opened with.
        """
        self.file.check_unchanged()
        r, count, first = self._recorder, len(ids), self.n_past
        self._plan.tokens.view(np.int64)[0] = count
        r.ids.view(np.int32)[:count] = ids
        r.positions.view(np.int32)[:count] = np.arange(first, first + count)
        for ring in r.rings.values():
            ring.place(first, count)
        for table in r.tables.values():
            table.fill(first, count, self.n_ctx)
        self._furthest = max(self._furthest, first + count)

    def threads_for(self, tokens: int) -> int:
        """How many threads compute a batch of so many tokens."""
        return self.threads if tokens <= FEW else self.threads_batch

    def _run(self, first: int, end: int, tokens: int) -> None:
        """Run some of the ops, for so many tokens."""
        with self.turn:
            self.require_open()
            self._team.run(first, end, self.threads_for(tokens))

    def _pick(self, rows: NDArray[np.int32]) -> Logits:
        """Have the output layer compute these tokens of the batch; where their logits will be."""
        r = self._recorder
        assert r.logits_buffer is not None
        self._plan.picked.view(np.int64)[0] = len(rows)
        r.picked_rows.view(np.int32)[: len(rows)] = rows
        logits: Logits = r.logits_buffer.floats.view(np.float32).reshape(-1, self.n_vocab)[: len(rows)]
        return logits

    def amount(self, tokens: int, past: int) -> Amount:
        """What `evaluate` has to do for so many tokens behind `past` others."""
        batch = self._plan.batch
        batches = [(first, min(batch, tokens - first)) for first in range(0, tokens, batch)]
        each = (self._plan.amount(count, past + first, first + count == tokens) for first, count in batches)
        return sum(each, NOTHING_TO_DO)

    def keep_stamps(self) -> None:
        """From now on, have every part of an op leave a time stamp, for `stamps` to take."""
        addresses, _ = loader.addresses([EXECUTE_STAMPED], paths.jit_dir())
        self._stamped = StampedMemory(self._plan.members, self._plan.scratch_bytes)
        self._team.close()
        self._team = Team(addresses[EXECUTE_STAMPED], self._program, self._stop, self._stamped.scratches)

    def stamps(self) -> Stamps:
        """The stamps of what was run since they were last taken."""
        return self._stamped.taken(self._program)

    @property
    def plan(self) -> Plan:
        """The recorded forward pass, to look at."""
        return self._plan

    # --- the cache ---

    def rewind(self, n: int) -> int:
        """Forget all but the first n tokens; how many are kept: 0 where a window no longer holds what n needs."""
        n = max(n, 0)
        if n >= self.n_past:
            return self.n_past
        if all(ring.still_holds(n, self._furthest) for ring in self._recorder.rings.values()):
            self.n_past = n
        else:
            self.reset()
        return self.n_past

    def reset(self) -> None:
        """Forget all tokens."""
        self.n_past = self._furthest = 0
        for ring in self._recorder.rings.values():
            ring.empty()

    @property
    def kv_bytes(self) -> int:
        """The memory of all keys and values."""
        return kv_bytes(self._recorder)

    @property
    def scratch_bytes(self) -> int:
        """The memory of everything else but the weights."""
        return self._plan.nbytes - self.kv_bytes

    def require_open(self) -> None:
        """Raise LocalInferError after `close`."""
        if self._closed:
            raise LocalInferError("the model is closed")

    def close(self) -> None:
        """End the threads. Nothing can be computed any more; what another thread computes ends after this batch."""
        self._closed = True
        with self.turn:
            self._team.close()


def record(f: GGUF, options: Options) -> Recorder:
    """The model's forward pass, recorded and checked; nothing is allocated or compiled."""
    write_down = architectures.find(f)
    config = read_config(f)
    n_ctx = options.ctx_size or min(config.context_length, LARGEST_DEFAULT_CONTEXT)
    turning = options.ctx_policy == "ring"
    sinks = min(options.keep, n_ctx // 2) if turning else 0
    batch = max(1, min(options.batch_size, options.ubatch_size, n_ctx))
    embedding = f.tensors.get("token_embd.weight")
    n_vocab = embedding.shape[0] if embedding is not None else 1
    outputs = max(1, min(batch, LOGITS_BYTES // (4 * max(1, n_vocab))))
    threads = options.threads or machine.default_threads()
    plan = Plan(batch, outputs, threads, options.threads_batch or threads, PASSES[options.precision])
    recorder = Recorder(f, config, plan, Context(n_ctx, sinks, turning, options.cache_type_k, options.cache_type_v))
    write_down(recorder)
    recorder.refuse_unused()
    return recorder


def kernels(f: GGUF, options: Options) -> list[Kernel]:
    """All that an engine for this file has to have compiled, each once."""
    plan = record(f, options).plan
    return list(dict.fromkeys([EXECUTE, *plan.kernels]))


def kv_bytes(recorder: Recorder) -> int:
    """The memory of all keys and values."""
    return sum(layer.k.nbytes + layer.v.nbytes for layer in recorder.layers)


def memory_plan(f: GGUF, options: Options = DEFAULTS) -> dict[str, int]:
    """The bytes that running this file takes: the mapped weights, the cache, the scratch."""
    recorder = record(f, options)
    kv = kv_bytes(recorder)
    weights = sum(tensor.nbytes for tensor in f.tensors.values())
    return {"weights": weights, "kv": kv, "scratch": recorder.plan.nbytes - kv}


def require_room_to_load(f: GGUF) -> None:
    """Raise NotEnoughMemory where libraries would find no place: one of them would end the process."""
    left = machine.address_space()
    if left < LIBRARIES_BYTES:
        what = f"loading it takes {LIBRARIES_BYTES >> 20} MiB of address space, {left >> 20} MiB are left (ulimit -v)"
        raise f.error("", what, NotEnoughMemory)


def require_memory(f: GGUF, needed: int, n_ctx: int) -> None:
    """Raise NotEnoughMemory before anything is taken that the machine does not have."""
    available = machine.available_memory()
    if needed > available:
        what = f"{n_ctx} tokens need {needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are available"
        raise f.error("context", f"{what}; --ctx-size sets a smaller one", NotEnoughMemory)
