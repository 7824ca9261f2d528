"""The model runner: evaluates batches of tokens of any sequences with a model's compiled graph.

The text of the tokens is not known here. A batch appends the tokens of its segments to their sequences.
"""

import os
import threading
import time
from collections import abc, deque
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import ContextOverflowError, LocalInferError, NotEnoughMemoryError, UsageError
from localinfer.graph.cache.page_pool import OutOfPagesError
from localinfer.kernels.layout import UNLIMITED_WINDOW
from localinfer.runtime.activations.hooked_batch import HookedBatch, HookedGraphs
from localinfer.runtime.activations.hooks import SequenceHooks
from localinfer.runtime.batch import (
    NO_ROWS,
    Ids,
    Logits,
    Segment,
    concatenate,
    without_segments,
)
from localinfer.runtime.compiled_graph import CompiledGraph, Floats, float_rows
from localinfer.runtime.media.media_table import MediaTable
from localinfer.runtime.modifiers import Modifiers
from localinfer.runtime.segment_media import media_inputs, media_with_segment
from localinfer.runtime.sequence import Sequence
from localinfer.runtime.thread_pool import OnOp
from quant.jit.loader import Progress

DECODE_STEPS_KEPT, MAX_TIMED_POSITION = 128, 256
MAX_POSITION = UNLIMITED_WINDOW  # kernels count positions with 32 bits


class ModelRunner:
    """Evaluates batches with a compiled graph.

    One thread at a time evaluates: it holds `lock`. `page_table_lock` protects the caches of all sequences; it is only
    held for short times. `evict` is called when no page is free: it discards a cached sequence, and returns whether
    there was one.
    """

    def __init__(self, compiled_graph: CompiledGraph, *, uses_ring_buffer: bool) -> None:
        self.compiled_graph, self.graph = compiled_graph, compiled_graph.graph
        self.uses_ring_buffer = uses_ring_buffer
        media_input = compiled_graph.model_graph.media_input
        self.media_table = MediaTable(media_input.row_size) if media_input else None
        self.lock, self.page_table_lock = threading.RLock(), threading.RLock()
        self.evict: abc.Callable[[], bool] = lambda: False
        adapters = compiled_graph.model_graph.adapters
        self.default_scales = adapters.scales if adapters else ()  # of the LoRA adapters, in runs that set no others
        self._hooked_graphs = HookedGraphs(compiled_graph)
        self._batch = HookedBatch(compiled_graph)  # the last one
        self.decode_seconds = deque[float](maxlen=DECODE_STEPS_KEPT)  # of batches of one token in a short context
        self.n_batches = self.n_batched = 0  # batches so far, and the sequences in them
        self._closed, self._process = False, os.getpid()

    def new_sequence(self, modifiers: Modifiers | None = None) -> Sequence:
        """Return a new, empty sequence. Its owner must `reset` it in the end, which frees its pages.

        Without `modifiers`, its LoRA adapters have the default scales.
        """
        model_graph = self.compiled_graph.model_graph
        caches, given = model_graph.sequence_caches(), modifiers or Modifiers(self.default_scales)
        return Sequence(caches, self.media_table, given, model_graph.embedded_adapters)

    def prepare_hooks(self, hooks: SequenceHooks, progress: Progress | None = None) -> None:
        """Build the graph that is cut at the points of these hooks."""
        with self.lock:
            if hooks.points:
                self._hooked_graphs.get(hooks.points, progress)

    def graph_with(self, hooks: SequenceHooks | None) -> CompiledGraph:
        """Return the graph that evaluates sequences with these hooks."""
        return self._hooked_graphs.get(hooks.points) if hooks and hooks.points else self.compiled_graph

    # --- batches ---

    def evaluate_segments(
        self, segments: abc.Sequence[Segment], rows: Ids = NO_ROWS, on_op: OnOp | None = None
    ) -> Logits:
        """Evaluate tokens of several sequences in one batch.

        Return the logits of the given rows, which count through all segments, float32 (len(rows), n_vocab), valid until
        the next call. Without rows, the output layer is skipped. The batch has at most `graph.batch` tokens of at most
        `graph.sequences` different sequences, and at most `graph.outputs` rows. Each sequence gets the same bits as
        alone. `on_op` receives the number of the current op regularly.

        Raises NotEnoughMemoryError if there are too few pages, and ContextOverflowError if the tokens do not fit into
        the context; the sequences are then unchanged.
        """
        with self.lock:
            self.require_open()
            if len(rows):
                self.compiled_graph.require_next_tokens()
            of_encoder = [self._is_of_encoder(each) for each in segments]
            if any(of_encoder) and not all(of_encoder):
                self.evaluate_segments([*compress(segments, of_encoder)], on_op=on_op)
                return self.evaluate_segments(*without_segments(segments, of_encoder, rows), on_op)
            self.prepare(segments)
            self.n_batches, self.n_batched = self.n_batches + 1, self.n_batched + len(segments)
            logits = self._batch.select_output_rows(rows)
            tokens, begin = sum(len(each.ids) for each in segments), time.perf_counter()
            try:
                for first, end in self._batch.graph.op_ranges(logits=len(rows) > 0, encoder=any(of_encoder)):
                    self.run(first, end, tokens, on_op)
            except BaseException:
                with self.page_table_lock:
                    for each in segments:  # undo partial updates, or discard what they affect
                        each.sequence.rewind(len(each.sequence))
                raise
            if tokens == 1 and len(rows) and len(segments[0].sequence) < MAX_TIMED_POSITION:
                self.decode_seconds.append(time.perf_counter() - begin)
            with self.page_table_lock:
                for each in segments:
                    each.sequence.commit(each.ids.tolist())
            return logits

    def evaluate_output_layer(self, rows: Ids) -> Logits:
        """Return the logits of rows of the last batch, float32 (len(rows), n_vocab), valid until the next call."""
        logits = self._batch.select_output_rows(rows)
        self.run(*self._batch.graph.model_graph.output_ops, len(rows))
        return logits

    def hidden_states(self, rows: Ids) -> Floats:
        """Return the hidden states of rows of the last batch after all layers, float32 (len(rows), n), valid until the
        next call."""
        self._batch.select_output_rows(rows)
        model_graph = self._batch.graph.model_graph
        self.run(model_graph.output_start, model_graph.final_states_end, len(rows))
        return float_rows(model_graph.final_states_buffer, len(rows))

    def output_logits(self, x: Floats) -> abc.Iterator[Logits]:
        """Yield the logits that the output layer computes from a residual stream, float32 (rows, n), several rows at a
        time. Each array is valid until the next one. Hooks are not called.
        """
        for first in range(0, len(x), self.graph.outputs):
            rows = x[first : first + self.graph.outputs]
            with self.lock:
                self.require_open()
                self.compiled_graph.require_output_layer()
                self.compiled_graph.residual_stream(len(rows))[:] = rows
                self.compiled_graph.model_graph.set_adapter_scales(0, len(rows), self.default_scales)
                logits = self.compiled_graph.select_output_rows(np.arange(len(rows), dtype=np.int32))
                self.compiled_graph.run(*self.compiled_graph.model_graph.output_ops, len(rows))
                yield logits

    def evaluate_packed(self, sequence: Sequence, texts: abc.Sequence[Ids], types: abc.Sequence[Ids] = ()) -> None:
        """Evaluate independent texts in one batch; `compiled_graph.hidden_states` then returns their hidden states.

        Nothing is cached. The texts take the pages of `sequence`, whose tokens are discarded. `types` are the token
        types (segment ids) of text pairs.
        """
        with self.lock:
            self.require_open()
            lengths = [len(text) for text in texts]
            with self.page_table_lock:
                self.retry_after_eviction(lambda: sequence.pack(lengths))
            self.n_batches, self.n_batched = self.n_batches + 1, self.n_batched + len(texts)
            positions = np.concatenate([np.arange(length) for length in lengths])
            ids = np.concatenate(texts)
            self._batch = self._hooked_graphs.batch([(sequence.modifiers.hooks, ids, positions)])
            self._batch.graph.set_inputs(ids, positions, np.concatenate(types) if types else 0)
            self._batch.graph.model_graph.set_adapter_scales(0, len(positions), sequence.modifiers.scales)
            row = 0
            for text in texts:
                self._batch.graph.model_graph.set_active_adapters(row, sequence.control_tokens.active(text, 0))
                row += len(text)
            self.run(0, self._batch.graph.model_graph.output_ops[0], len(positions))

    def prepare(self, segments: abc.Sequence[Segment]) -> None:
        """Allocate cache space for a batch, and write its inputs. Raises the errors of `evaluate_segments`."""
        for each in segments:
            self.require_context_space(each.sequence, len(each.ids))
        with self.page_table_lock:
            for each in segments:
                self._reserve(each.sequence, len(each.ids))
            self.set_inputs(segments)

    def set_inputs(self, segments: abc.Sequence[Segment]) -> None:
        """Write the inputs of a batch where the kernels read them. Each segment follows its sequence's
        cached tokens."""
        positions = [np.arange(len(each.sequence), len(each.sequence) + len(each.ids)) for each in segments]
        medias = [media_with_segment(each) for each in segments]
        media = media_inputs(segments, medias, positions)
        ids = concatenate([each.ids for each in segments])
        rows = ((each.sequence.modifiers.hooks, each.ids, at) for each, at in zip(segments, positions, strict=True))
        self._batch = self._hooked_graphs.batch(rows)
        has_encoder = self.compiled_graph.context.encoder_decoder
        lengths = np.concatenate([self._encoder_lengths(each) for each in segments]) if has_encoder else None
        self._batch.graph.set_inputs(ids, concatenate(positions), media=media, encoder_lengths=lengths)
        row = 0
        for each, each_media in zip(segments, medias, strict=True):
            each.sequence.set_inputs(len(each.ids), row, each_media)
            self._batch.graph.model_graph.set_adapter_scales(row, len(each.ids), each.sequence.modifiers.scales)
            active = each.sequence.control_tokens.active(each.ids, len(each.sequence))
            self._batch.graph.model_graph.set_active_adapters(row, active)
            row += len(each.ids)

    def _is_of_encoder(self, segment: Segment) -> bool:
        """Return whether the tokens of a segment are those of an encoder."""
        return self.compiled_graph.context.encoder_decoder and bool(segment.ids[0] < 0)

    def _encoder_lengths(self, segment: Segment) -> NDArray[np.int64]:
        """Return for each token of a segment how many tokens its sequence has of an encoder."""
        length = len(segment.ids) if self._is_of_encoder(segment) else segment.sequence.encoder_length
        return np.full(len(segment.ids), length)

    def run(self, first: int, end: int, tokens: int, on_op: OnOp | None = None) -> None:
        """Run the ops `first` to `end - 1` for a batch of `tokens` tokens. `on_op` receives the current op's number
        regularly."""
        with self.lock:
            self.require_open()
            self._batch.run(first, end, tokens, on_op)

    # --- cache space ---

    def require_context_space(self, sequence: Sequence, count: int) -> None:
        """Raise ContextOverflowError unless `count` more tokens fit into the context."""
        n_past, n_ctx = len(sequence), self.compiled_graph.n_ctx
        if not self.uses_ring_buffer and n_past + count > n_ctx:
            raise ContextOverflowError(
                f"context is full: {n_past} + {count} tokens do not fit in {n_ctx}; "
                "ctx_size (--ctx-size) sets a larger one, ctx_policy (--ctx-policy) ring overwrites the oldest tokens"
            )
        if n_past + count > MAX_POSITION:
            raise ContextOverflowError(f"context is full: the largest position is {MAX_POSITION}")

    def _reserve(self, sequence: Sequence, count: int) -> None:
        """Allocate cache space for `count` more tokens of a sequence. Raises NotEnoughMemoryError."""
        self.retry_after_eviction(lambda: sequence.reserve(count))

    def retry_after_eviction(self, allocate: abc.Callable[[], None]) -> None:
        """Call `allocate`, and evict other cached sequences as long as it runs out of pages."""
        while True:
            try:
                return allocate()
            except OutOfPagesError:
                if not self.evict():
                    raise NotEnoughMemoryError("context: all KV cache pages are in use") from None

    # --- closing ---

    def require_open(self) -> None:
        """Raise LocalInferError after `close`, and in a forked process, which has no worker threads; UsageError in a
        hook."""
        if self._batch.is_in_hook():
            raise UsageError("a hook cannot evaluate the model that it belongs to")
        if self._closed:
            raise LocalInferError("the model is closed")
        if os.getpid() != self._process:
            raise LocalInferError("the model was loaded by another process, of which this one is a fork")

    def close(self) -> None:
        """End the threads. A batch of another thread is completed first; later calls raise LocalInferError."""
        self._closed = True
        with self.lock:
            self._hooked_graphs.close()
            self.compiled_graph.close()
