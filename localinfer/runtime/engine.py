"""The engine: evaluates token ids and returns logits. It knows nothing of text.

It runs sequences through the model's compiled graph, one batch of tokens at a time.
"""

import os
import threading
from collections import abc
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import ContextOverflowError, LocalInferError, NotEnoughMemoryError, UnsupportedError, UsageError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF
from localinfer.graph.cache.page_pool import OutOfPagesError
from localinfer.graph.compute_graph import ComputeGraph
from localinfer.graph.cost import NO_COST, Cost
from localinfer.kernels.layout import UNLIMITED_WINDOW
from localinfer.options import Options
from localinfer.runtime import machine, weight_loading
from localinfer.runtime.compiled_graph import CompiledGraph, Floats
from localinfer.runtime.sequence import Sequence
from localinfer.runtime.thread_pool import OnOp
from quant.jit.loader import Progress

Ids = NDArray[np.int32]
Logits = NDArray[np.float32]
Tokens = abc.Sequence[int] | abc.Iterator[int] | Ids

LIBRARY_BYTES = 192 << 20  # address space for LLVM and the tokenizer's libraries
MAX_POSITION = UNLIMITED_WINDOW  # kernels count positions with 32 bits
NO_ROWS = np.zeros(0, np.int32)
AnyInteger = TypeVar("AnyInteger", np.int32, np.int64)


@dataclass(frozen=True, slots=True)
class Segment:
    """New tokens of a sequence within a batch. They follow the tokens that the sequence has cached."""

    sequence: Sequence
    ids: Ids


@dataclass(frozen=True, eq=False)
class DraftHeadInput:
    """The input of the draft head for one sequence: a token `id` at a `position` that the model has not evaluated yet.

    `previous_state` is the draft head's own hidden state of the previous token, if the model has not evaluated that
    one either.
    """

    sequence: Sequence
    id: int
    position: int
    previous_state: Floats | None = None

    @property
    def state(self) -> Floats | float:
        """Return the hidden state of the previous token."""
        return self.sequence.hidden_state(self.position - 1) if self.previous_state is None else self.previous_state


class StepInput(NamedTuple):
    """The tokens to evaluate in the next decode step. No logits are needed for the first `skip` of them."""

    ids: list[int]
    skip: int = 0


class DecodeLoop(Protocol):
    """A decode loop: the logits of each step determine the tokens of the next one."""

    def next_tokens(self) -> StepInput:
        """Return the tokens of the next step."""

    def process_logits(self, logits: Logits) -> bool:
        """Choose the next tokens by the logits of a step, float32 (len(ids) - skip, n_vocab).

        The logits are valid until the method returns. Return whether the loop certainly has a next step.
        """


class Engine:
    """A model that is ready to run: a compiled graph, and a default sequence.

    A `draft_head` from a file of its own may draft tokens for it (`localinfer.graph.eagle3`). The constructor raises
    the errors of `CompiledGraph` and `load_weights`.

    `new_sequence` makes further sequences, and `evaluate_segments` evaluates several of them in one batch.

    One thread at a time evaluates: it holds `lock`. A caller that needs the default sequence unchanged between calls
    holds `lock`, too. `page_table_lock` protects the caches of all sequences; it is only held for short times.
    """

    def __init__(
        self, f: GGUF, options: Options, progress: Progress | None = None, draft_head: GGUF | None = None
    ) -> None:
        self.file = f = weight_loading.load_weights(f, options, progress)
        draft_head = weight_loading.load_weights(draft_head, options, progress) if draft_head else None
        self.lock, self.page_table_lock = threading.RLock(), threading.RLock()
        self.uses_ring_buffer = options.ctx_policy == "ring"
        self.evict: abc.Callable[[], bool] = lambda: False  # evicts a cached sequence; returns whether there was one
        self._closed, self._process = False, os.getpid()
        self.compiled_graph = CompiledGraph(f, options, progress, draft_head)
        self.sequence = Sequence(self.compiled_graph.builder.sequence_caches())
        self.n_ctx, self.n_vocab, self.warnings = (
            self.compiled_graph.n_ctx,
            self.compiled_graph.n_vocab,
            self.compiled_graph.warnings,
        )
        if options.mlock:
            problems = {
                printable(str(each.path)): each.lock() for file in self.compiled_graph.files for each in file.files
            }
            self.warnings = [*self.warnings, *(f"{path}: {problem}" for path, problem in problems.items() if problem)]

    @property
    def n_past(self) -> int:
        """The number of cached tokens."""
        return len(self.sequence)

    @property
    def graph(self) -> ComputeGraph:
        """The compute graph, read-only."""
        return self.compiled_graph.graph

    # --- tokens in, logits out ---

    def evaluate(self, tokens: Tokens, progress: Progress | None = None, *, rewindable_suffix: int = 0) -> Logits:
        """Append `tokens` and return the logits after the last one, float32 (n_vocab,). They are valid until the next
        call.

        With `rewindable_suffix`, the sequence can later be rewound to where that many last tokens begin: models with
        recurrent state evaluate these in a batch of their own, after a checkpoint.

        Raises ContextOverflowError if the tokens do not fit and the cache is no ring buffer. After a KeyboardInterrupt
        the sequence holds the completed batches, or as many tokens as it can rewind to; see `n_past`.
        """
        with self.lock:
            self.require_predictions()
            ids, done = self.validate_tokens(tokens), 0
            cut = 0 if self.sequence.can_rewind else max(0, len(ids) - rewindable_suffix) if rewindable_suffix else 0
            *whole, last = [*self.batches(ids[:cut]), *self.batches(ids[cut:])]
            for batch in whole:
                self._evaluate_batch(batch, on_op=self._on_op_callback(progress, done, len(batch), len(ids)))
                done += len(batch)
                if done == cut:
                    self.checkpoint()
            row = np.array([len(last) - 1], np.int32)
            logits = self._evaluate_batch(last, row, self._on_op_callback(progress, done, len(last), len(ids)))
            if progress:
                progress("prefill", len(ids), len(ids))
            return logits.reshape(-1)

    @property
    def max_step_tokens(self) -> int:
        """The maximum number of tokens of `evaluate_draft`."""
        return min(self.graph.batch, self.graph.outputs)

    def evaluate_draft(self, tokens: Tokens, skip: int = 0) -> Logits:
        """Evaluate a few tokens in one pass and return the logits after each but the first `skip`.

        The logits are float32 (len(tokens) - skip, n_vocab), valid until the next call, and bit-identical to those of
        tokens that are evaluated one by one. Errors are those of `evaluate`.

        All tokens after the first `skip` + 1 are draft tokens. The caller must call `rewind` afterwards: it goes back
        to any of them, or to fewer tokens if recurrent states are too large to be stored after each, but at least to
        the tokens before the draft.
        """
        with self.lock:
            self.require_predictions()
            ids = self.validate_tokens(tokens)
            assert len(ids) <= self.max_step_tokens
            if len(ids) > skip + 1:
                self.sequence.begin_draft(skip + 1)
            return self._evaluate_batch(ids, np.arange(skip, len(ids), dtype=np.int32))

    def run_step(self, decode_loop: DecodeLoop) -> None:
        """Run one step of a decode loop, as `evaluate_draft` does."""
        decode_loop.process_logits(self.evaluate_draft(*decode_loop.next_tokens()))

    @property
    def has_draft_head(self) -> bool:
        """Whether the model has a draft head, which predicts the token after the next one (MTP, EAGLE-3)."""
        return self.compiled_graph.builder.draft_head is not None

    def evaluate_draft_head(
        self, id: int, position: int, previous_state: Floats | None = None
    ) -> tuple[Logits, Floats]:
        """Evaluate the draft head for a token at a position that the model has not evaluated yet.

        Return its logits, float32 (n_vocab,), valid until the next call, and its hidden state of the token. Pass that
        as `previous_state` to draft one token further. The sequence does not change.
        """
        logits, states = self.evaluate_draft_head_batch([DraftHeadInput(self.sequence, id, position, previous_state)])
        return logits[0], states[0]

    def evaluate_draft_head_batch(self, inputs: abc.Sequence[DraftHeadInput]) -> tuple[Logits, Floats]:
        """Evaluate the draft head for several sequences, at most `graph.sequences`, in one pass.

        Return logits (len(inputs), n_vocab) and hidden states (len(inputs), n), bit-identical to separate evaluations.
        """

        def place() -> None:
            for at, each in enumerate(inputs):
                each.sequence.place_draft_head(each.position, at)

        with self.lock:
            with self.page_table_lock:
                self._retry_after_eviction(place)
                ids, positions = ([each.id for each in inputs], [each.position for each in inputs])
                self.compiled_graph.place_batch(np.array(ids, np.int32), np.array(positions))
            logits, states = self.compiled_graph.run_draft_head([each.state for each in inputs])
            return logits, states.copy()

    def logits(self, tokens: Tokens) -> Logits:
        """Append `tokens` and return the logits after each, float32 (len(tokens), n_vocab)."""
        with self.lock:
            ids = self.validate_tokens(tokens)
            result = np.empty((len(ids), self.n_vocab), np.float32)
            row = 0
            for part in self.logits_in_batches(ids):
                result[row : row + len(part)] = part
                row += len(part)
            return result

    def logits_in_batches(self, tokens: Tokens, skip: int = 0) -> abc.Iterator[Logits]:
        """Append `tokens` and yield the logits after each but the first `skip`, several rows at a time.

        Each yielded array is valid until the next one. The caller must exhaust the iterator.
        """
        self.require_predictions()
        for batch in self.batches(self.validate_tokens(tokens)):
            self._evaluate_batch(batch)
            for rows in self.output_row_batches(len(batch), skip):
                logits = self.compiled_graph.select_output_rows(rows)
                self.run(*self.compiled_graph.output_layer_ops, len(rows))
                yield logits
            skip = max(0, skip - len(batch))

    def evaluation_cost(self, tokens: int, n_past: int) -> Cost:
        """Return the cost of evaluating `tokens` tokens after `n_past` cached ones."""
        batch = self.graph.batch
        batches = [(first, min(batch, tokens - first)) for first in range(0, tokens, batch)]
        each = (self.graph.cost(count, n_past + first, first + count == tokens) for first, count in batches)
        return sum(each, NO_COST)

    # --- batches ---

    def validate_tokens(self, tokens: Tokens) -> Ids:
        """Return the ids as an int32 array.

        Raises UsageError unless it has at least one id and all are within the vocabulary, ContextOverflowError if they
        do not fit into the context.
        """
        self.require_open()
        ids = np.asarray(list(tokens) if isinstance(tokens, abc.Iterator) else tokens)  # numpy rejects iterators
        if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
            raise UsageError("tokens: expected a non-empty flat list of token ids")
        numbers = ids.tolist()  # faster than numpy for few ids
        if min(numbers) < 0 or max(numbers) >= self.n_vocab:
            raise UsageError(f"tokens: a token id is out of range, 0 to {self.n_vocab - 1}")
        self.require_context_space(self.sequence, len(ids))
        return ids.astype(np.int32)

    def require_context_space(self, sequence: Sequence, count: int) -> None:
        """Raise ContextOverflowError unless `count` more tokens fit into the context."""
        n_past = len(sequence)
        if not self.uses_ring_buffer and n_past + count > self.n_ctx:
            raise ContextOverflowError(
                f"context is full: {n_past} + {count} tokens do not fit in {self.n_ctx}; "
                "--ctx-size sets a larger one, --ctx-policy ring overwrites the oldest tokens"
            )
        if n_past + count > MAX_POSITION:
            raise ContextOverflowError(f"context is full: the largest position is {MAX_POSITION}")

    def batches(self, ids: Ids) -> list[Ids]:
        """Split tokens into batches of at most `graph.batch`."""
        return [ids[first : first + self.graph.batch] for first in range(0, len(ids), self.graph.batch)]

    def output_row_batches(self, count: int, skip: int = 0) -> abc.Iterator[Ids]:
        """Yield the row numbers of a batch but the first `skip`, at most `graph.outputs` at a time."""
        for start in range(skip, count, self.graph.outputs):
            yield np.arange(start, min(start + self.graph.outputs, count), dtype=np.int32)

    def place_batch(self, ids: Ids) -> None:
        """Write the inputs of a batch of the default sequence where the kernels read them."""
        self._place_segments([Segment(self.sequence, ids)])

    def _place_segments(self, segments: abc.Sequence[Segment]) -> None:
        """Write the inputs of a batch where the kernels read them. Each segment follows its sequence's
        cached tokens."""
        positions = [np.arange(len(each.sequence), len(each.sequence) + len(each.ids)) for each in segments]
        self.compiled_graph.place_batch(concatenated([each.ids for each in segments]), concatenated(positions))
        at = 0
        for each in segments:
            each.sequence.place(len(each.ids), at)
            at += len(each.ids)

    def run(self, first: int, end: int, tokens: int, on_op: OnOp | None = None) -> None:
        """Run the ops `first` to `end - 1` for a batch of `tokens` tokens. `on_op` receives the current op's number
        regularly."""
        with self.lock:
            self.require_open()
            self.compiled_graph.run(first, end, tokens, on_op)

    def _on_op_callback(self, progress: Progress | None, done: int, count: int, total: int) -> OnOp | None:
        """Return an `on_op` callback that converts op numbers to evaluated tokens, as all layers take similar time."""
        if progress is None:
            return None
        ops = len(self.graph.ops)

        def report(op: int) -> None:
            progress("prefill", done + count * op // ops, total)

        report(0)
        return report

    def _evaluate_batch(self, ids: Ids, rows: Ids = NO_ROWS, on_op: OnOp | None = None) -> Logits:
        """Evaluate one batch of the default sequence. Return the logits of the given rows; without rows skip the output
        layer."""
        return self._run_batch([Segment(self.sequence, ids)], rows, on_op)

    def _run_batch(self, segments: abc.Sequence[Segment], rows: Ids, on_op: OnOp | None = None) -> Logits:
        """Evaluate a batch of segments, and return the logits of the given rows."""
        with self.page_table_lock:
            for each in segments:
                self.reserve(each.sequence, len(each.ids))
            self._place_segments(segments)
        logits = self.compiled_graph.select_output_rows(rows)
        tokens = sum(len(each.ids) for each in segments)
        try:
            for first, end in self.compiled_graph.op_ranges(logits=len(rows) > 0):
                self.run(first, end, tokens, on_op)
        except BaseException:
            with self.page_table_lock:
                for each in segments:  # undo partial updates, or discard what they affect
                    each.sequence.rewind(len(each.sequence))
            raise
        with self.page_table_lock:
            for each in segments:
                each.sequence.commit(each.ids.tolist())
        return logits

    # --- several sequences ---

    def reserve(self, sequence: Sequence, count: int) -> None:
        """Allocate cache space for `count` more tokens of a sequence. Raises NotEnoughMemoryError."""
        self._retry_after_eviction(lambda: sequence.reserve(count))

    def _retry_after_eviction(self, allocate: abc.Callable[[], None]) -> None:
        """Call `allocate`, and evict other cached sequences as long as it runs out of pages."""
        while True:
            try:
                return allocate()
            except OutOfPagesError:
                if not self.evict():
                    raise NotEnoughMemoryError("context: all KV cache pages are in use") from None

    def new_sequence(self) -> Sequence:
        """Return a new, empty sequence. Its owner must `reset` it in the end, which frees its pages."""
        return Sequence(self.compiled_graph.builder.sequence_caches())

    def evaluate_segments(self, segments: abc.Sequence[Segment], rows: Ids = NO_ROWS) -> Logits:
        """Evaluate tokens of several sequences in one batch.

        Return the logits of the given rows, which count through all segments, float32 (len(rows), n_vocab), valid until
        the next call. The batch has at most `graph.batch` tokens of at most `graph.sequences` different sequences, and
        at most `graph.outputs` rows. Each sequence gets the same bits as alone. Raises NotEnoughMemoryError if there
        are too few pages, and ContextOverflowError as `evaluate`; the sequences are then unchanged.
        """
        with self.lock:
            self.require_predictions()
            for each in segments:
                self.require_context_space(each.sequence, len(each.ids))
            return self._run_batch(segments, rows)

    # --- the cache ---

    @property
    def can_rewind(self) -> bool:
        """Whether any number of the last tokens can be discarded, at least those of one batch."""
        return self.sequence.can_rewind

    def rewind(self, n: int) -> int:
        """Discard all but the first `n` tokens and return how many are kept.

        That is 0 if a sliding window no longer holds what token `n` attends to, and the position of a checkpoint before
        `n` for recurrent states.
        """
        return self.sequence.rewind(n)

    def reuse_prefix(
        self,
        tokens: abc.Sequence[int],
        max_tokens: int,
        progress: Progress | None = None,  # noqa: ARG002
    ) -> int:
        """Discard all cached tokens but the longest common prefix with `tokens`, at most `max_tokens`. Return its
        length."""
        return self.rewind(min(common_prefix_length(self.sequence.tokens, tokens), max_tokens))

    def checkpoint(self) -> None:
        """Keep the current length as a rewind target for some time."""
        with self.lock:
            self.sequence.checkpoint()

    def pause(self) -> None:
        """Announce that the next step may take a while. Only scheduled engines wait for each other."""

    def reset(self) -> None:
        """Discard all cached tokens."""
        self.sequence.reset()

    @property
    def kv_bytes(self) -> int:
        """The memory of the KV cache and recurrent states, in bytes."""
        return self.compiled_graph.builder.cache_bytes

    @property
    def scratch_bytes(self) -> int:
        """The memory of everything else but the weights, in bytes."""
        return self.graph.nbytes - self.kv_bytes

    # --- independent texts in one batch ---

    def evaluate_packed(self, texts: abc.Sequence[Ids], types: abc.Sequence[Ids] = ()) -> None:
        """Evaluate independent texts in one batch; `compiled_graph.hidden_states` then returns their hidden states.

        Nothing is cached, and the default sequence is discarded. `types` are the token types (segment ids) of text
        pairs.
        """
        with self.lock:
            self.require_open()
            lengths = [len(text) for text in texts]
            with self.page_table_lock:
                self._retry_after_eviction(lambda: self.sequence.pack(lengths))
            positions = np.concatenate([np.arange(length) for length in lengths])
            self.compiled_graph.place_batch(np.concatenate(texts), positions, np.concatenate(types) if types else 0)
            self.run(0, self.compiled_graph.output_layer_ops[0], len(positions))

    def append(self, tokens: Ids) -> None:
        """Append a batch of tokens without computing logits."""
        with self.lock:
            self._evaluate_batch(tokens)

    def require_predictions(self) -> None:
        """Raise UnsupportedError for an encoder, which has no output layer."""
        if not self.compiled_graph.has_output_layer:
            what = f"{self.file.get('general.architecture', str)} is an encoder and does not predict tokens"
            raise self.file.error("", f"{what}; `localinfer embed` computes embeddings with it", UnsupportedError)

    # --- closing ---

    def require_open(self) -> None:
        """Raise LocalInferError after `close`, and in a forked process, which has no worker threads."""
        if self._closed:
            raise LocalInferError("the model is closed")
        if os.getpid() != self._process:
            raise LocalInferError("the model was loaded by another process, of which this one is a fork")

    def close(self) -> None:
        """End the threads. A batch of another thread is completed first; later calls raise LocalInferError."""
        self._closed = True
        with self.lock:
            self.compiled_graph.close()


def common_prefix_length(a: abc.Sequence[int], b: abc.Sequence[int]) -> int:
    """Return the length of the common prefix of two token sequences."""
    pairs = zip(a, b, strict=False)
    return next((n for n, (left, right) in enumerate(pairs) if left != right), min(len(a), len(b)))


def concatenated(parts: abc.Sequence[NDArray[AnyInteger]]) -> NDArray[AnyInteger]:
    """Return the concatenation of arrays; a single array is returned as it is."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def require_address_space(f: GGUF) -> None:
    """Raise NotEnoughMemoryError if the address space is too small for the libraries, one of which would abort the
    process."""
    left = machine.address_space()
    if left < LIBRARY_BYTES:
        what = f"needs {LIBRARY_BYTES >> 20} MiB of address space to load, {left >> 20} MiB are left (ulimit -v)"
        raise f.error("", what, NotEnoughMemoryError)
