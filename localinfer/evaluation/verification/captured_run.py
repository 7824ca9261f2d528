"""Runs a model's graph operation by operation, and records the results of each.

The first tokens are evaluated together, as a prompt is, and the last ones one and two at a time, as they are generated:
these are different kernels. The results of all batches are then joined, row by row.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from localinfer.evaluation.verification.cached_heads import CachedHeads, read_keys, read_values
from localinfer.evaluation.verification.rounded_inputs import rounded_inputs
from localinfer.gguf.reader import GGUF
from localinfer.graph.cache.ring_buffer import LayerCache, RingBuffer
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.points import LAYER
from localinfer.graph.properties.adapters import Adapters
from localinfer.graph.properties.repeated_layers import with_repeated_layers
from localinfer.graph.recording.attention import LayerAttention
from localinfer.graph.recording.model_graph import HookedGraph
from localinfer.graph.recording.operation_log import LoggedOperation, OperationLog
from localinfer.graph.recording.points import Point
from localinfer.options import Options
from localinfer.runtime.batch import Segment
from localinfer.runtime.compiled_graph import CompiledGraph
from localinfer.runtime.cuts import run_in_parts
from localinfer.runtime.encoder_tokens import encoder_length
from localinfer.runtime.graph_building import Extensions
from localinfer.runtime.model_runner import ModelRunner
from localinfer.runtime.row_access.tuning import tune
from quant.jit.loader import Progress

Floats = NDArray[np.float32]

STEPS = 1, 2  # tokens of the last batches
MAX_BATCH = 512
STATES = (
    "ssm_conv1d_state", "ssm_conv1d_q_state", "ssm_conv1d_k_state", "ssm_conv1d_v_state", "ssm_state",
    "shortconv.conv_state", "ple_conv1d_state", "time_mix_shift_state", "time_mix_state", "channel_mix_shift_state",
)  # fmt: skip
POINTS = "attn_q_rope", "ffn_expert_ids", "ffn_expert_weights", *STATES  # results within operations


@dataclass(eq=False)
class CapturedOperation:
    """What an operation computed, with a row for each token: its results, the arguments that it changed, by number, and
    the residual streams if there are several. `rounded` are the inputs of its matrices, as the kernels have rounded
    them, by the name of the matrix: float64. `work` is the number of multiplications for a token, for the progress."""

    path: str
    work: int
    results: list[Floats] = field(default_factory=list)
    changed: dict[int, Floats] = field(default_factory=dict)
    streams: list[Floats] = field(default_factory=list)
    rounded: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    inner: "list[CapturedOperation]" = field(default_factory=list)
    was_run: bool = False  # in this batch: those of an encoder and of a decoder are not


@dataclass(eq=False)
class CapturedRun:
    """The operations of a run, the points within them, and the keys and values that the caches hold, by the prefix of
    the layer's names.
    `batches` are the numbers of tokens that were evaluated together."""

    tokens: Sequence[int]
    operations: list[CapturedOperation]
    points: dict[str, NDArray[np.float32] | NDArray[np.int32]]
    keys: dict[str, CachedHeads]
    values: dict[str, CachedHeads]
    passes: int  # of products with quantized weights: see `ComputeGraph`
    n_ctx: int
    batches: Sequence[int]


class CaptureGraph:
    """The graph of a model that can stop after each operation. Raises the errors of `CompiledGraph`."""

    def __init__(
        self, f: GGUF, options: Options, progress: Progress | None = None, adapters: Adapters | None = None
    ) -> None:
        self.log, names = OperationLog(), [f"{prefix}{kind}" for prefix in layer_prefixes(f) for kind in POINTS]
        # One sequence, whose caches hold all tokens, in batches that have logits for each token.
        options = replace(options, ctx_policy="stop", parallel=1, batch_size=MAX_BATCH, ubatch_size=MAX_BATCH)
        extensions, hooks = Extensions(adapters=adapters), HookedGraph(names, log=self.log)
        self.compiled = CompiledGraph(f, options, progress, extensions, hooks=hooks)
        self._runner = ModelRunner(self.compiled, uses_ring_buffer=False)
        if options.tune:
            tune(self._runner, may_measure=False)  # rows are read as in other runs
        self._macs = np.array([cost.macs for cost in self.compiled.graph.op_costs(1, 0, 1)])  # by op
        self._layers = {layer.name: layer for layer, _ in self.compiled.model_graph.attention.layers.values()}

    @property
    def is_causal(self) -> bool:
        """Whether tokens attend to those before them only; otherwise, a text is one batch."""
        return self.compiled.model_graph.context.causal

    @property
    def nbytes_per_token(self) -> int:
        """The memory of what is recorded for a token, in bytes."""
        buffers = (x for each in self.walk() for x in (*each.results, *each.changed.values(), *each.streams))
        return sum(4 * x.n for x in buffers)

    @property
    def nbytes_per_batch(self) -> int:
        """The memory of what is recorded for a batch, however many tokens it has: recurrent states."""
        return sum(self.compiled.model_graph.states.sizes)

    def batches(self, tokens: Sequence[int]) -> list[int]:
        """Return the sizes of the batches in which tokens are evaluated."""
        if not self.is_causal:
            return [len(tokens)]
        encoder = encoder_length(tokens)
        count = len(tokens) - encoder
        steps = [size for size in STEPS if count > sum(STEPS)]
        rest, most = count - sum(steps), self.compiled.graph.outputs
        return [encoder] * bool(encoder) + [most] * (rest // most) + ([rest % most] if rest % most else []) + steps

    def run(self, tokens: Sequence[int]) -> CapturedRun:
        """Evaluate tokens from position 0 on."""
        sequence, first, parts = self._runner.new_sequence(), 0, []
        for count in self.batches(tokens):
            ids = np.array(tokens[first : first + count], np.int32)
            if self.is_causal:
                self._runner.prepare([Segment(sequence, ids)])
            else:
                sequence.pack([count])
                self.compiled.set_inputs(ids, np.arange(count))
                self.compiled.model_graph.set_adapter_scales(0, count, self._runner.default_scales)
            of_encoder = self.compiled.context.encoder_decoder and not first
            self.compiled.select_output_rows(np.arange(0 if of_encoder else count, dtype=np.int32))
            parts.append(self._run_batch(count, of_encoder=of_encoder))
            if self.is_causal:
                sequence.commit(ids.tolist())
            first += count
        sequence.reset()
        return join(tokens, parts)

    def _run_batch(self, count: int, *, of_encoder: bool = False) -> CapturedRun:
        """Run a batch of `count` tokens, whose inputs are set: those of an encoder, or of the decoder or any other
        model."""
        run = CapturedRun((), [], {}, {}, {}, self.compiled.graph.passes, self.compiled.n_ctx, [count])
        captured = {operation: CapturedOperation(operation.path, self.work(operation)) for operation in self.walk()}
        for operation, result in captured.items():
            result.inner = [captured[each] for each in operation.inner]
        run.operations = [captured[each] for each in self.log.operations]
        at: dict[int, list[Callable[[], None]]] = {}
        for point in self.compiled.model_graph.points.points.values():
            at.setdefault(point.op, []).append(partial(self._capture_point, point, run, count))
        for operation, result in captured.items():
            at.setdefault(operation.end_op, []).append(partial(self._capture, operation, result, count))
        for layer in self._layers.values():
            if layer.kv_source is None:
                end = next(n for n, op in enumerate(self.compiled.graph.ops) if op.name == f"{layer.name}append") + 1
                at.setdefault(end, []).append(partial(self._capture_cache, layer, run, count))
            if layer.spec.compression:
                name = f"{layer.name}compressed_append"
                end = next(n for n, op in enumerate(self.compiled.graph.ops) if op.name == name) + 1
                at.setdefault(end, []).append(partial(self._capture_compressed, layer, run, count))
        border = self.compiled.model_graph.decoder_start
        first, last = (0, border) if of_encoder else (border, max(each.end_op for each in self.log.operations))
        cuts = [cut for cut in sorted(at) if first < cut <= last]
        for cut in run_in_parts(lambda start, stop: self.compiled.run(start, stop, count), cuts, first, last):
            for capture in at[cut]:
                capture()
        return run

    def work(self, operation: LoggedOperation) -> int:
        """Return the multiplications that an operation takes for a token, without those of the operations in it."""
        inner = sum(self._macs[each.first_op : each.end_op].sum() for each in operation.inner)
        return int(self._macs[operation.first_op : operation.end_op].sum() - inner)

    def walk(self) -> Iterator[LoggedOperation]:
        """Yield all operations, those within others first."""
        for operation in self.log.operations:
            yield from operation.walk()

    def _capture_point(self, point: Point, run: CapturedRun, count: int) -> None:
        run.points[point.name] = point.read(slice(count - 1 if point.is_state else 0, count))

    def _capture(self, operation: LoggedOperation, result: CapturedOperation, count: int) -> None:
        """Record the results of an operation, which has just run."""
        result.was_run = True
        result.results = [rows(x, count) for x in operation.results]
        result.changed = {number: rows(x, count) for number, x in operation.changed.items()}
        result.streams = [rows(x, count) for x in operation.streams]
        for op in () if operation.inner else self.compiled.graph.ops[operation.first_op : operation.end_op]:
            result.rounded.update(rounded_inputs(op, count, self.compiled.graph.passes))

    def _capture_cache(self, layer: LayerAttention, run: CapturedRun, count: int) -> None:
        """Record the keys and values of the batch, as the cache holds them."""
        heads, (cache, ring) = layer.heads, self._cache_of(layer)
        entries = ring.entries.view(np.int32)[:count]
        run.keys[layer.name] = read_keys(cache, ring, entries, heads.key_dim, heads.key)
        if cache.v.nbytes:
            run.values[layer.name] = read_values(cache, ring, entries, heads.value_dim, heads.value)

    def _capture_compressed(self, layer: LayerAttention, run: CapturedRun, count: int) -> None:
        """Record the keys of the compressed runs that the batch completes, if any, as the cache holds them."""
        heads, (cache, ring) = layer.heads, self._cache_of(layer)
        entries = ring.compressed.view(np.int32)[:count]
        if (entries >= 0).any():
            keys = read_keys(cache, ring, entries[entries >= 0], heads.key_dim, heads.key)
            run.keys[f"{layer.name}compressed_"] = keys

    def _cache_of(self, layer: LayerAttention) -> tuple[LayerCache, RingBuffer]:
        """Return the cache of a layer, and its ring buffer."""
        attention = self.compiled.model_graph.attention
        cache = attention.caches[layer.cache_name]
        return cache, next(ring for ring in attention.rings.values() if any(each is cache for each in ring.layers))

    def close(self) -> None:
        """End the threads."""
        self._runner.close()


def layer_prefixes(f: GGUF) -> set[str]:
    """Return the prefixes of the names of tensors in layers."""
    return {layer[0] for layer in map(LAYER.match, with_repeated_layers(f).tensors) if layer}


@contextmanager
def capture_graph(
    f: GGUF, options: Options, progress: Progress | None = None, adapters: Adapters | None = None
) -> Iterator[CaptureGraph]:
    """Open the graph of a model, and close it at the end."""
    graph = CaptureGraph(f, options, progress, adapters)
    try:
        yield graph
    finally:
        graph.close()


def rows(x: Buffer, count: int) -> Floats:
    """Return a copy of the first rows of a buffer."""
    return x.floats.view(np.float32)[: count * x.n].reshape(count, x.n).copy()


def join(tokens: Sequence[int], parts: Sequence[CapturedRun]) -> CapturedRun:
    """Return the runs of batches that follow each other as one."""

    def joined(of_batches: Sequence[CapturedOperation]) -> CapturedOperation:
        operations = [each for each in of_batches if each.was_run]
        first = operations[0]
        return CapturedOperation(
            first.path,
            first.work,
            [np.concatenate(each) for each in zip(*(one.results for one in operations), strict=True)],
            {number: np.concatenate([one.changed[number] for one in operations]) for number in first.changed},
            [np.concatenate(each) for each in zip(*(one.streams for one in operations), strict=True)],
            {name: np.concatenate([one.rounded[name] for one in operations]) for name in first.rounded},
            [joined(each) for each in zip(*(one.inner for one in operations), strict=True)],
        )

    def joined_heads(kind: str) -> dict[str, CachedHeads]:
        of_parts: list[dict[str, CachedHeads]] = [getattr(part, kind) for part in parts]
        return {
            layer: CachedHeads.joined([heads[layer] for heads in of_parts if layer in heads])
            for layer in dict.fromkeys(layer for heads in of_parts for layer in heads)
        }

    names = dict.fromkeys(name for part in parts for name in part.points)
    return CapturedRun(
        tokens,
        [joined(each) for each in zip(*(part.operations for part in parts), strict=True)],
        {name: np.concatenate([part.points[name] for part in parts if name in part.points]) for name in names},
        joined_heads("keys"),
        joined_heads("values"),
        parts[0].passes,
        parts[0].n_ctx,
        [count for part in parts for count in part.batches],
    )
