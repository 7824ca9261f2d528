"""A compiled graph: a model's compute graph in memory, its kernels compiled or loaded from the cache, and its threads.

It evaluates batches of any sequences. Earlier tokens are in the caches of the sequences.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer import paths
from localinfer.errors import UnsupportedError
from localinfer.gguf.reader import GGUF
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.ops.compute_graph import MAX_SMALL_BATCH
from localinfer.graph.ops.op import set_large_batch_kernels
from localinfer.graph.properties.published_windows import missing_window_warnings
from localinfer.graph.recording.media_input import MediaRows
from localinfer.graph.recording.model_graph import HookedGraph, ModelGraph
from localinfer.options import Options, Precision
from localinfer.runtime.cuts import run_in_parts
from localinfer.runtime.graph_building import (
    ACTIVATION_PASSES,
    NO_EXTENSIONS,
    Extensions,
    build_graph,
    build_graph_within_memory,
)
from localinfer.runtime.idle_work import IdleWork
from localinfer.runtime.memory_limit import may_exceed_memory, memory_for_weights
from localinfer.runtime.requirements import kernels_of_tokenizer, require_memory
from localinfer.runtime.thread_pool import POOL_KERNELS, OnOp, ThreadPool
from localinfer.runtime.timestamps import TimestampBuffer
from quant.jit import loader
from quant.jit.background import load_in_order
from quant.jit.loader import Progress

if TYPE_CHECKING:  # few models need it
    from localinfer.runtime.expert_cache.cache import ExpertCache

Floats = NDArray[np.float32]


class MediaInputs(NamedTuple):
    """The media of a batch of n tokens: its runs of rows, and two functions that return rotary positions.

    `coordinates_before(offset)` returns those of the tokens that are `offset` tokens before those of the batch, (n, 4),
    and `page_positions(starts)` those of the tokens at which the pages of the batch's tokens begin, (n,).
    """

    rows: Sequence[MediaRows]
    coordinates_before: Callable[[int], NDArray[np.int64]]
    page_positions: Callable[[NDArray[np.int64]], NDArray[np.int64]]


class CompiledGraph:
    """A compute graph that is ready to run. `files` are the model's file and that of a separate draft head.

    With `hooks`, it is the graph that `with_hooks` returns.

    If kernels are not cached yet and are not wanted `at_once`, those for large batches are compiled in the background.
    Until they are finished, batches have at most `max_batch` tokens; a larger one waits for them.

    Raises LocalInferError for an invalid file, UnsupportedError for a model that cannot run, NotEnoughMemoryError if
    the cache and the scratch memory do not fit.
    """

    def __init__(
        self,
        f: GGUF,
        options: Options,
        progress: Progress | None = None,
        extensions: Extensions = NO_EXTENSIONS,
        *,
        at_once: bool = True,
        hooks: HookedGraph | None = None,
    ) -> None:
        self.files = (f, extensions.draft_head) if extensions.draft_head else (f,)
        self._options, self._extensions = options, extensions
        if hooks:
            self.model_graph = build_graph(f, options, extensions, hooks)
        else:
            self.model_graph = build_graph_within_memory(memory_for_weights(f, options), f, options, extensions)
        self.graph, self.cuts = self.model_graph.graph, self.model_graph.points.cuts()
        self.context = self.model_graph.context
        self.n_ctx = self.context.n_ctx
        self.n_vocab = self.model_graph.n_vocab
        require_memory(f, self.graph.nbytes, self.n_ctx)
        first = [*POOL_KERNELS, *kernels_of_tokenizer(f), *self.graph.kernels(large_batch=False)]
        later = self.graph.kernels(large_batch=True)
        if at_once or not self.context.causal:
            first, later = [*first, *later], []
        self._compilation, kernel_warnings = load_in_order(first, later, paths.jit_dir(), progress)
        self.warnings = [*kernel_warnings, *missing_window_warnings(self.model_graph.hparams, self.n_ctx)]
        addresses = loader.addresses_of(first if self._compilation else [*first, *later])
        self._op_records = self.graph.finalize(addresses)
        self.expert_cache: ExpertCache | None = None
        self._owns_expert_cache = hooks is None
        if hooks is None and may_exceed_memory(f, options):
            self._open_expert_cache()
        self._stop = self.graph.stop.view(np.int64)
        self.idle_work = IdleWork()
        self._thread_pool = ThreadPool(
            addresses, self._op_records, self._stop, self.graph.scratch_addresses, self.idle_work
        )

    def _open_expert_cache(self) -> None:
        """Open the cache of the experts of a model that is larger than memory, and warn about its speed."""
        from localinfer.runtime.expert_cache.plan import open_expert_cache

        self.expert_cache, warnings = open_expert_cache(self.files[0], self.model_graph, self._options)
        self.warnings += warnings

    # --- hooks ---

    @cached_property
    def point_graph(self) -> ModelGraph:
        """Return a graph that has all points of the model (`localinfer.graph.points`) and cannot run."""
        return build_graph(self.files[0], self._own_options, self._extensions, HookedGraph(None))

    def with_hooks(self, points: Collection[str], progress: Progress | None = None) -> "CompiledGraph":
        """Return a graph of the same model that is cut at these points. It evaluates the same sequences, as both have
        the same caches."""
        extensions, hooks = self._extensions._replace(draft_head=None), HookedGraph(points, self.model_graph)
        result = CompiledGraph(self.files[0], self._own_options, progress, extensions, hooks=hooks)
        result.graph.product_choices.set_accesses(self.graph.product_choices.accesses)
        result.graph.product_choices.set_subtractions(self.graph.product_choices.subtractions)
        result.expert_cache = self.expert_cache
        return result

    @property
    def _own_options(self) -> Options:
        """The options with the context length that was chosen."""
        return replace(self._options, ctx_size=self.n_ctx)

    # --- kernels ---

    @property
    def max_batch(self) -> int:
        """The number of tokens of the largest batch that need not wait for kernels: `graph.batch`, or less while
        kernels for large batches are compiled in the background."""
        if self._compilation and self._compilation.is_complete:
            self.wait_for_kernels()
        return min(self.graph.batch, MAX_SMALL_BATCH) if self._compilation else self.graph.batch

    @property
    def max_step_tokens(self) -> int:
        """The maximum number of tokens of a decode step, which has logits after each."""
        return min(self.max_batch, self.graph.outputs)

    def wait_for_kernels(self, progress: Progress | None = None) -> None:
        """Wait until the kernels for large batches are compiled. Raises RuntimeError if that fails."""
        if compilation := self._compilation:
            compilation.wait(progress)
            addresses = loader.addresses_of(self.graph.kernels(large_batch=True))
            set_large_batch_kernels(self._op_records, self.graph.ops, addresses)
            self._compilation = None

    # --- batches ---

    def op_ranges(self, *, logits: bool, encoder: bool = False) -> list[tuple[int, int]]:
        """Return the ranges of ops (first, one past the last) that evaluate a batch, with or without the output layer,
        or a batch of tokens of an `encoder`.

        A draft head adds the batch to its own KV cache.
        """
        model_graph = self.model_graph
        (start, end), head, first = model_graph.output_ops, model_graph.draft_head, model_graph.decoder_start
        if encoder:
            return [(0, first)]
        if logits:
            return [(first, head.attention_op if head else end)]
        return [(first, start), *([(head.start_op, head.attention_op)] if head else [])]

    @property
    def precision(self) -> Precision:
        """The precision of activations; never "auto"."""
        return next(name for name, passes in ACTIVATION_PASSES.items() if passes == self.graph.passes)

    def require_output_layer(self) -> None:
        """Raise UnsupportedError for an encoder, which has no output layer."""
        if self.model_graph.logits_buffer is None:
            f = self.files[0]
            what = f"{f.get('general.architecture', str)} is an encoder and does not predict tokens"
            raise f.error("", f"{what}; `localinfer embed` computes embeddings with it", UnsupportedError)

    def require_next_tokens(self) -> None:
        """Raise UnsupportedError for a model that does not predict next tokens: an encoder, a diffusion language
        model."""
        self.require_output_layer()
        if self.context.diffusion:
            what = "is a diffusion language model, without logits of next tokens"
            what = f"{self.model_graph.hparams.architecture} {what}; `localinfer generate`, `chat` and `serve` run it"
            raise self.files[0].error("", what, UnsupportedError)

    @property
    def has_draft_head(self) -> bool:
        """Whether the model has a draft head, which predicts the token after the next one."""
        return self.model_graph.draft_head is not None

    def set_inputs(
        self,
        ids: NDArray[np.int32],
        positions: NDArray[np.int64],
        types: NDArray[np.int32] | int = 0,
        media: MediaInputs | None = None,
        encoder_lengths: NDArray[np.int64] | None = None,
    ) -> None:
        """Write a batch of token ids, positions and token types (segment ids of text pairs) where the kernels read
        them. `encoder_lengths` are, for each token, how many tokens its sequence has of an encoder.

        `media` are the media rows of the batch and the rotary positions of its tokens, if these differ. The
        token of a media row is the `media_token` of the graph. Raises LocalInferError if a model file has changed since
        it was opened.
        """
        for f in self.files:
            f.check_unchanged()
        model_graph, count = self.model_graph, len(ids)
        self.graph.tokens.set(count)
        if model_graph.media_input:
            ids = np.where(ids < 0, np.int32(model_graph.media_token), ids)
            model_graph.media_input.fill(count, media.rows if media else ())
            if modality_rows := model_graph.modality_rows:
                modality_rows.fill(count, media.rows if media else ())
        if encoder_lengths is not None:
            ids = np.where(ids < 0, ~ids, ids)
            model_graph.attention.encoder_last.view(np.int32)[:count] = encoder_lengths - 1
        model_graph.ids.view(np.int32)[:count] = model_graph.with_substitutes(ids)
        model_graph.token_types.view(np.int32)[:count] = types
        model_graph.attention.positions.view(np.int32)[:count] = positions
        for table in model_graph.attention.rope_tables.values():
            offset = table.rope.offset  # which the table subtracts
            table.fill(media.coordinates_before(offset) + offset if media else positions, self.n_ctx)
        for block_table in model_graph.attention.block_tables.values():
            starts = block_table.page_starts(positions)
            block_table.fill(media.page_positions(starts) if media else starts)

    def select_output_rows(self, rows: NDArray[np.int32]) -> Floats:
        """Select the rows of the batch that the output layer evaluates. Return the buffer that will hold
        their logits."""
        self.graph.output_rows.set(len(rows))
        self.model_graph.output_indices.view(np.int32)[: len(rows)] = rows
        return float_rows(self.model_graph.logits_buffer, len(rows))

    def residual_stream(self, tokens: int) -> Floats:
        """Return the residual stream of a batch of `tokens` tokens, a view of shape (tokens, n)."""
        return float_rows(self.model_graph.residual, tokens)

    def threads_for(self, tokens: int) -> int:
        """Return the number of threads that evaluate a batch of `tokens` tokens."""
        return self.graph.threads if tokens <= MAX_SMALL_BATCH else self.graph.threads_batch

    def run(self, first: int, end: int, tokens: int, on_op: OnOp | None = None) -> None:
        """Run the ops `first` to `end - 1` for a batch of `tokens` tokens; see `ThreadPool.run` for `on_op`."""
        if tokens > MAX_SMALL_BATCH:
            self.wait_for_kernels()
        threads, cache = self.threads_for(tokens), self.expert_cache
        if cache is None:
            self._thread_pool.run(first, end, threads, on_op)
            return
        layers = {each.first_op: each for each in self.model_graph.expert_layers if first <= each.first_op < end}
        run = partial(self._thread_pool.run, n_threads=threads, on_op=on_op)
        for cut in run_in_parts(run, layers, first, end):
            cache.load(layers[cut], tokens)

    # --- threads ---

    @contextmanager
    def recorded_timestamps(self, *, alone: bool = False) -> Iterator[TimestampBuffer]:
        """Record timestamps of all chunks in the with block. Yields their buffer. With `alone`, one thread processes
        the chunks of all threads."""
        buffer = TimestampBuffer(self._op_records, 1 if alone else self.graph.n_threads, self.graph.scratch_bytes)
        self._thread_pool.use_scratch(buffer.scratches, timestamps=True, alone=alone)
        try:
            yield buffer
        finally:
            self._thread_pool.use_scratch(self.graph.scratch_addresses)

    def close(self) -> None:
        """End the threads, and what is compiled in the background."""
        self._thread_pool.close()
        if self.expert_cache is not None and self._owns_expert_cache:
            self.expert_cache.close()
        if self._compilation:
            self._compilation.close()


def float_rows(buffer: Buffer | None, rows: int) -> Floats:
    """Return the first `rows` rows of a buffer as float32; an empty array for None."""
    if buffer is None:
        return np.zeros((0, 0), np.float32)
    result: Floats = buffer.floats.view(np.float32).reshape(-1, buffer.n)[:rows]
    return result
