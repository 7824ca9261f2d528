"""The builder that records a model's compute graph: see `localinfer.graph.builder` for the operations.

Every tensor is checked by name, shape and type at its first use, so architecture files contain only the computation.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from localinfer.errors import UnsupportedError
from localinfer.gguf.dequantize import dequantize
from localinfer.gguf.reader import Tensor
from localinfer.graph.builder import (
    BlockChoice,
    Builder,
    CrossAttentionOperations,
    CrossLayerOperations,
    ExpertOperations,
    ModalityFunction,
    RecurrentOperations,
    RunChoice,
)
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.adapters import LowRankChange
from localinfer.graph.properties.attention import VALUE_GROUP, AttentionHeads, AttentionSpec, bias_rows
from localinfer.graph.properties.embedded_adapters import LORA_A, parts_of
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.properties.model_properties import DECODER, ENCODER, Block
from localinfer.graph.properties.rope import Rope, read_rope
from localinfer.graph.properties.tensors import Tensors, constant_tensor, row_slice
from localinfer.graph.recording import matrix_products
from localinfer.graph.recording.attention import NO_NORMS, HeadNorms, LayerAttention
from localinfer.graph.recording.modality_rows import ModalityRows
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.graph.recording.operations.embeddings import EmbeddingRecorder
from localinfer.graph.recording.operations.heads import HeadRecorder
from localinfer.graph.recording.operations.indexer import select_blocks, select_positions, select_runs
from localinfer.graph.recording.operations.low_rank import record_changes
from localinfer.graph.recording.operations.output import OutputRecorder
from localinfer.kernels.layout import MAX_BIAS_DISTANCE
from localinfer.kernels.signatures import (
    ADD,
    ADD_BIAS,
    ADD_NORM,
    CLIP,
    GATED_ACTIVATION,
    GAUSSIAN_TOPK,
    LAYER_NORM,
    NORM_GROUPS,
    NORM_HEADS,
    RMS_NORM,
    SOFT_CAP,
    XIELU,
)

if TYPE_CHECKING:  # few models need it
    from localinfer.graph.recording.operations.embedded_adapters import EmbeddedAdapterRecorder


class MatrixPart(NamedTuple):
    """Rows of the matrix `name`, which has `n_rows` rows: those from `first` on."""

    name: str
    rows: Tensor
    first: int
    n_rows: int


class GraphBuilder(Builder[Buffer]):
    """Records the operations of a model as ops of its compute graph."""

    def __init__(self, model: ModelGraph) -> None:
        super().__init__(model)
        self.model, self._graph = model, model.graph
        self.embeddings = EmbeddingRecorder(self, model)
        self.per_head = HeadRecorder(model.graph, model.tensors)
        self.output = OutputRecorder(self, model)

    # Most models need no operations of these topics. Importing their modules would delay each start.

    @cached_property
    def recurrent(self) -> RecurrentOperations[Buffer]:
        from localinfer.graph.recording.operations.recurrent import RecurrentRecorder

        return RecurrentRecorder(self.model)

    @cached_property
    def experts(self) -> ExpertOperations[Buffer]:
        from localinfer.graph.recording.operations.experts import ExpertRecorder

        return ExpertRecorder(self, self.model)

    @cached_property
    def cross_attention(self) -> CrossAttentionOperations[Buffer]:
        from localinfer.graph.recording.operations.cross_attention import CrossAttentionRecorder

        return CrossAttentionRecorder(self, self.model)

    @cached_property
    def cross_layer(self) -> CrossLayerOperations[Buffer]:
        from localinfer.graph.recording.operations.cross_layer import CrossLayerRecorder

        return CrossLayerRecorder(self, self.model)

    @cached_property
    def embedded(self) -> "EmbeddedAdapterRecorder":
        """What embedded adapters add to products, for a model that has them."""
        from localinfer.graph.recording.operations.embedded_adapters import EmbeddedAdapterRecorder

        return EmbeddedAdapterRecorder(self.model)

    def blocks(self, group: str = "blk") -> Iterator[Block]:
        for number, heads in enumerate(self.model.heads_of(group)):
            blk = Block(number, heads, group)
            self.model.start_block(number, str(blk))
            with self._graph.reuse_buffers():
                x = self.model.residual
                if x:
                    self.point(x, f"{blk}resid_pre")
                yield blk
                if x:
                    if group != ENCODER or not self.model.has_decoder:
                        self._add_control_vector(x, number)
                    self.point(x, f"{blk}resid_post")

    def _add_control_vector(self, x: Buffer, number: int) -> None:
        """Add the vector of a layer to the residual stream after it, if there is one."""
        direction = self.model.adapters.direction(number) if self.model.adapters else None
        if direction is not None:
            self._graph.op(direction.name, ADD_BIAS, x.rows, bias=direction, n=x.n, x=x)

    def point(self, x: Buffer, name: str) -> None:
        self.model.points.add(name, x)

    def asks_for(self, name: str) -> bool:
        return self.model.points.asks_for(name)

    # --- rows ---

    def norm(
        self, x: Buffer, name: str, *, in_place: bool = False, layer_norm_eps: float = 0.0, eps: float | None = None
    ) -> Buffer:
        y = x if in_place else self._graph.buffer(x.n, x.rows)
        if self.properties.has_norm_weights:
            weight = self.tensors.vector(self.tensors.full_name(name), x.n)
        else:
            weight = constant_tensor(f"{name}.weight", np.ones(x.n, np.float32))
        if self.uses_layer_norm or layer_norm_eps:
            self._graph.op(
                name, LAYER_NORM, x.rows, constants=self._graph.layouts, chunks=(0, 8), x=x, weight=weight,
                bias=self.tensors.bias(name, x.n) or 0, n=x.n, eps=layer_norm_eps or eps or self.eps, y=y,
                q=y.quantized,
            )  # fmt: skip
        else:
            self._graph.op(
                name, RMS_NORM, x.rows, constants=self._graph.layouts, chunks=(0, 8), x=x, weight=weight, n=x.n,
                eps=eps or self.eps, y=y, q=y.quantized,
            )  # fmt: skip
        self.point(y, name)
        return y

    def norm_groups(
        self,
        x: Buffer,
        size: int,
        tensor: str = "",
        *,
        per_group_weight: bool = False,
        eps: float | None = None,
        out: Buffer | None = None,
    ) -> Buffer:
        y, shape = out or self._graph.buffer(x.n, x.rows), (x.n // size, size) if per_group_weight else (size,)
        self._graph.op(
            tensor or "norm_groups", NORM_GROUPS, x.rows, chunks=(1, 8), x=x, count=x.n // size, size=size,
            weight=group_weights(self.tensors, tensor, shape) if tensor else 0, step=size if per_group_weight else 0,
            eps=eps or self.eps,
            y=y,
        )  # fmt: skip
        return y

    def add_norm(self, x: Buffer, branch: Buffer, name: str, *, eps: float | None = None) -> None:
        if self.uses_layer_norm or self.asks_for(name):
            self.add(x, self.norm(branch, name, eps=eps))
            return
        weight = self.tensors.vector(self.tensors.full_name(name), x.n)
        self._graph.op(
            name, ADD_NORM, x.rows, chunks=(0, 8), branch=branch, weight=weight, n=x.n, eps=eps or self.eps, x=x
        )

    def add(self, x: Buffer, branch: Buffer, factor: float = 1.0) -> None:
        self._graph.op("add", ADD, x.rows, chunks=(0, 8), branch=branch, factor=factor, n=x.n, x=x)

    def add_vector(self, x: Buffer, tensor: str) -> Buffer:
        self._graph.op(tensor, ADD_BIAS, x.rows, bias=self.tensors.vector(tensor, x.n), n=x.n, x=x)
        return x

    def clip(self, x: Buffer, limit: float) -> None:
        self._graph.op("clip", CLIP, x.rows, chunks=(1, 8), x=x, low=-limit, high=limit, n=x.n, y=x)

    def soft_cap(self, x: Buffer, factor: float, cap: float) -> None:
        self._graph.need_scratch(64)
        self._graph.op("soft_cap", SOFT_CAP, x.rows, chunks=(1, 8), factor=factor, cap=cap, n=x.n, x=x)

    def gate(
        self, gate: Buffer, up: Buffer | None, activation: str = "none", *, first: int = 0,
        std_multiplier: float = -math.inf,
    ) -> Buffer:  # fmt: skip
        name = self.model.block_prefix
        if math.isfinite(std_multiplier):
            self._graph.op(
                f"{name}keep_largest", GAUSSIAN_TOPK, gate.rows, chunks=(0, 8), deviations=std_multiplier, n=gate.n,
                x=gate,
            )  # fmt: skip
        small, large = ({**layout, "activation": activation} for layout in self._graph.layouts)
        self._graph.op(
            f"{name}gated", GATED_ACTIVATION, gate.rows, constants=(small, large), chunks=(1, 16), up=up or 0,
            up_n=up.n if up else 0, up_first=first, n=gate.n, gate=gate, q=gate.quantized,
        )  # fmt: skip
        return gate

    def by_modality(self, x: Buffer, function: ModalityFunction[Buffer]) -> Sequence[Buffer]:
        model = self.model
        if model.media_input is None:
            return function(x, False)
        model.modality_rows = model.modality_rows or ModalityRows(model.graph)
        return model.modality_rows.apply(x, function, model.points)

    def xielu(self, x: Buffer, alpha_p: float, alpha_n: float, beta: float, eps: float) -> None:
        self._graph.op(
            "xielu", XIELU, x.rows, chunks=(1, 8), alpha_p=alpha_p, alpha_n=alpha_n, beta=beta, eps=eps, n=x.n, x=x
        )

    # --- matrices ---

    def matmul(self, x: Buffer, name: str, n_out: int, *, add_to: Buffer | None = None) -> Buffer:
        part = MatrixPart(name, self.tensors.tensor(f"{name}.weight", n_out, x.n), 0, n_out)
        adds_at_once = add_to is not None and not self.asks_for(name)
        [y] = self._products(x, [part], add_to if adds_at_once else None)
        self._add_embedded(x, y, name)
        if adds_at_once:
            return y
        if name != "token_embd":  # the embedding may be the output matrix, too
            self.point(y, name)
        if add_to is None:
            return y
        self.add(add_to, y)
        return add_to

    def matmuls(self, x: Buffer, *matrices: tuple[str, int]) -> Sequence[Buffer]:
        parts = [MatrixPart(name, self.tensors.tensor(f"{name}.weight", n, x.n), 0, n) for name, n in matrices]
        products = self._products(x, parts)
        for part, y in zip(parts, products, strict=True):
            self._add_embedded(x, y, part.name)
            self.point(y, part.name)
        return products

    def slices(self, x: Buffer, name: str, *n_outs: int) -> Sequence[Buffer]:
        n_rows, first, parts = sum(n_outs), 0, []
        weight = self.tensors.tensor(f"{name}.weight", n_rows, x.n)
        for n_out in n_outs:
            parts.append(MatrixPart(name, row_slice(weight, first, n_out), first, n_rows))
            first += n_out
        products = self._products(x, parts)
        for y, matrix in zip(products, parts_of(name), strict=False):
            self._add_embedded(x, y, matrix)
        return products

    def _add_embedded(self, x: Buffer, y: Buffer, name: str) -> None:
        """Add to y, the product of x with a matrix, what the embedded adapters of the tokens change."""
        if self.model.embedded_adapters and self.tensors.has(f"{name}{LORA_A}"):
            self.embedded.add(x, y, name)

    def _products(self, x: Buffer, parts: Sequence[MatrixPart], add_to: Buffer | None = None) -> Sequence[Buffer]:
        """Record the products of x with the parts, at the same time, then what adapters change in them."""
        changes = [self._change(part) for part in parts]
        adapted = any(changes)
        products = [self._model_product(x, part, add_to, part is parts[-1] and not adapted) for part in parts]
        if adapted:
            record_changes(self.model, x, zip(products, changes, [part.first for part in parts], strict=True))
        return products

    def _change(self, part: MatrixPart) -> LowRankChange | None:
        """Return what adapters change in the product with a matrix. Of the embedding they change the lookup; an output
        layer that shares its weights has adapters of its own."""
        return self.model.low_rank("output.weight" if part.name == "token_embd" else f"{part.name}.weight")

    def _model_product(self, x: Buffer, part: MatrixPart, add_to: Buffer | None, barrier: bool) -> Buffer:
        """Record the product without adapters, with its bias and scale."""
        name, weight, first, n_rows = part
        bias, factor = self.tensors.bias(name, n_rows), self.tensors.scale(name)
        if bias is not None and weight.shape[0] != n_rows:
            bias = row_slice(bias, first, weight.shape[0])
        if bias is not None and add_to is not None:
            self._graph.op(f"{name}.bias", ADD_BIAS, x.rows, bias=bias, n=add_to.n, x=add_to)
            bias = None
        if factor == 1.0:
            return matrix_products.matmul(self._graph, x, weight, add_to=add_to, bias=bias, barrier=barrier)
        y = matrix_products.matmul(self._graph, x, weight)
        if add_to is not None:
            self.add(add_to, y, factor)
            return add_to
        self.scale(y, factor)
        if bias is not None:
            self._graph.op(f"{name}.bias", ADD_BIAS, x.rows, bias=bias, n=y.n, x=y)
        return y

    # --- attention ---

    def rope(
        self, pairs: str, *, truncate: bool = True, amplified: bool = True, with_temperature: bool = True,
        base: str = "rope.freq_base",
    ) -> Rope:  # fmt: skip
        length, n_ctx = self.model.key_length(sliding=False), self.model.context.n_ctx
        rope = read_rope(
            self.hparams, self.tensors, pairs, length, n_ctx, truncate=truncate, amplified=amplified, base_key=base
        )
        return rope if with_temperature else replace(rope, temperature=None)

    def attend(
        self, blk: Block, q: Buffer, k: Buffer | None, v: Buffer | None, spec: AttentionSpec, *,
        kv_source: int | None = None, compressed: Buffer | None = None,
    ) -> Buffer:  # fmt: skip
        heads, tensors = blk.heads, self.tensors
        if spec.rope and spec.rope.n_rot > heads.key:
            what = f"is {spec.rope.n_rot}; {blk}attn_q has heads of {heads.key}"
            raise self.hparams.error("rope.dimension_count", what)
        check_lengths(self.hparams, blk, q, k, v)
        if spec.compression:
            require_whole_context(self.model, "compressed attention")
        norms = NO_NORMS
        if spec.head_norm == "per_head":
            assert k is not None
            norm_heads(self.model, q, f"{blk}attn_q_norm", heads.count, heads.key)
            norm_heads(self.model, k, f"{blk}attn_k_norm", heads.count_kv, heads.key)
        elif spec.head_norm == "unweighted":
            norms = HeadNorms(spec.head_norm)
        elif spec.head_norm != "none":
            weights = [tensors.vector(f"{blk}attn_{name}_norm.weight", heads.key) for name in ("qk" if k else "q")]
            norms = HeadNorms(spec.head_norm, *weights)
        if kv_source is not None:
            check_kv_source(self.model, blk, kv_source)
            self.model.has_cross_layer_inputs = True
        layer = LayerAttention(
            f"{self.model.layer_prefix}{blk}",
            heads,
            spec,
            norms,
            None if kv_source is None else f"blk.{kv_source}.",
            tensors.vector(f"{blk}attn_sinks.weight", heads.count) if spec.sinks else None,
            key_bias(self.model, blk) if k is not None and spec.head_norm == "none" else None,
            biases=distance_biases(self.model, spec.bias, heads.count) if spec.bias else None,
            cache=f"{DECODER}.0." if self.model.is_encoding else "",
            of_encoder=self.model.is_encoding,
        )
        y = self.model.attention.attend(layer, q, k, v, compressed)
        self.point(y, f"{blk}attn_heads")
        return y

    def select_positions(
        self, blk: Block, q: Buffer, k: Buffer, weights: Buffer, spec: AttentionSpec, top_k: int
    ) -> None:
        select_positions(self.model, indexer(self.hparams, blk, q, k, spec), q, k, weights, top_k)

    def select_runs(
        self, blk: Block, q: Buffer, k: Buffer, weights: Buffer | None, rope: Rope | None, runs: RunChoice
    ) -> None:
        require_whole_context(self.model, "attention to runs of positions")
        layer = indexer(self.hparams, blk, q, k, AttentionSpec(rope, compression=runs.size, only_runs=True))
        select_runs(self.model, layer, q, k, weights, runs.top_k)

    def select_blocks(self, blk: Block, q: Buffer, k: Buffer, rope: Rope, blocks: BlockChoice) -> None:
        layer = indexer(self.hparams, blk, q, k, AttentionSpec(rope))
        if layer.heads.count != blk.heads.count_kv:
            what = f"is {layer.heads.count}; there are {blk.heads.count_kv} key heads"
            raise self.hparams.error("attention.indexer.head_count", what)
        select_blocks(self.model, layer, q, k, blocks)

    def rotate(self, x: Buffer, heads: int, rope: Rope) -> None:
        self.model.attention.rotate(x, heads, rope)


def indexer(hparams: Hyperparameters, blk: Block, q: Buffer, k: Buffer, spec: AttentionSpec) -> LayerAttention:
    """Return the indexer of a layer, whose heads of queries share the key. Raises UnsupportedError if its length is
    not supported."""
    if k.n % VALUE_GROUP or (spec.rope and spec.rope.n_rot > k.n):
        raise hparams.unsupported("attention.indexer.key_length", k.n)
    return LayerAttention(f"{blk}indexer.", AttentionHeads(q.n // k.n, 1, k.n, k.n), spec)


def require_whole_context(model: ModelGraph, what: str) -> None:
    """Raise UnsupportedError for a ring buffer of the context, from which positions of runs may vanish."""
    if model.context.context_shift:
        raise model.f.error("", f"{what} with ctx_policy ring is not supported", UnsupportedError)


def group_weights(tensors: Tensors, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return the weights of a norm of groups: (size,) or (groups, size), where the file may have (groups, 1), or all in
    one dimension."""
    found, one_each = tensors.f.tensors.get(name), (shape[0], 1)
    if len(shape) == 1 or found is None or found.shape != one_each:
        is_flat = found is not None and len(found.shape) == 1
        return tensors.floats(name, *((math.prod(shape),) if is_flat else shape))
    return constant_tensor(name, np.repeat(tensors.floats(name, *one_each).data.view(np.float32), shape[-1]))


def key_bias(model: ModelGraph, blk: Block) -> Tensor | None:
    """Return the bias of the keys of a layer, if any."""
    heads = blk.heads
    q, k, v = heads.count * heads.key, heads.count_kv * heads.key, heads.count_kv * heads.value
    if model.tensors.has(f"{blk}attn_qkv.weight"):
        bias = model.tensors.bias(f"{blk}attn_qkv", q + k + v)
        return None if bias is None else row_slice(bias, q, k)
    return model.tensors.bias(f"{blk}attn_k", k)


def distance_biases(model: ModelGraph, name: str, heads: int) -> Tensor:
    """Return the biases of scores by the distance of the key, as attention kernels read them."""
    if model.context.context_shift:  # a panel of a ring buffer may have positions that are not adjacent
        raise model.f.error("", "relative position biases with ctx_policy ring are not supported", UnsupportedError)
    count = model.hparams.count("attention.relative_buckets_count", minimum=4, maximum=MAX_BIAS_DISTANCE)
    weights = dequantize(model.tensors.tensor(f"{name}.weight", count, heads))
    return constant_tensor(name, bias_rows(weights, causal=model.context.causal and not model.is_encoding))


def norm_heads(model: ModelGraph, x: Buffer, name: str, heads: int, size: int) -> None:
    """Apply LayerNorm to each head, with weights per head."""
    weight = model.tensors.floats(f"{name}.weight", heads, size)
    model.graph.op(name, NORM_HEADS, x.rows, weight=weight, heads=heads, size=size, eps=model.eps, x=x)


def check_lengths(hparams: Hyperparameters, blk: Block, q: Buffer, k: Buffer | None, v: Buffer | None) -> None:
    """Raise LocalInferError if queries, keys or values do not have the length that the head counts require."""
    heads = blk.heads
    expected = ("head_count", q, heads.count * heads.key), ("head_count_kv", k, heads.count_kv * heads.key)
    for key, x, n in (*expected, ("head_count_kv", v, heads.count_kv * heads.value)):
        if x is not None and x.n != n:
            raise hparams.error(f"attention.{key}", f"makes {n} values of a token in {blk}attn; there are {x.n}")


def check_kv_source(model: ModelGraph, blk: Block, source: int) -> None:
    """Raise LocalInferError if a layer has other key and value heads than the layer whose keys it uses."""
    if replace(model.attention_heads[source], count=blk.heads.count) != blk.heads:
        what = f"layer {blk.number} has other heads than layer {source}, whose keys it uses"
        raise model.hparams.error("attention.head_count_kv", what)
