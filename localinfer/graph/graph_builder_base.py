"""The basic operations of the graph builder: tokens, rows and matrices, and the properties of the model.

`localinfer.graph.graph_builder` adds the others.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from localinfer.gguf.reader import GGUF, StringArray, Tensor
from localinfer.graph import matrix_products
from localinfer.graph.attention import Attention, Context
from localinfer.graph.buffers import Buffer, Region
from localinfer.graph.cache.page_table import PageTable
from localinfer.graph.cache.recurrent_state import RecurrentState, StatePool
from localinfer.graph.cache.sequence_cache import SequenceCache
from localinfer.graph.compute_graph import ComputeGraph
from localinfer.graph.cost import Cost, CostModel
from localinfer.graph.heads import Heads, read_heads
from localinfer.graph.hyperparameters import Hyperparameters
from localinfer.graph.tensors import Tensors, row_slice
from localinfer.kernels.signatures import (
    ADD,
    ADD_BIAS,
    ADD_NORM,
    COPY,
    GATED_ACTIVATION,
    GATHER_ROWS,
    GAUSSIAN_TOPK,
    GET_ROWS,
    LAYER_NORM,
    NORM_GROUPS,
    RMS_NORM,
    SOFT_CAP,
)
from quant import FORMATS


@dataclass(frozen=True)
class Block:
    """A layer. As text, it is the prefix of the layer's tensor names."""

    number: int
    heads: Heads

    def __str__(self) -> str:
        return f"blk.{self.number}."


MAX_TOKEN_TYPES = 1024
CLASSIFIER = ("cls.weight", "cls.bias", "cls.norm.weight", "cls.output.weight", "cls.output.bias")
RMS_EPSILON, LAYER_EPSILON = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


class GraphBuilderBase:
    """The properties of a model, and the basic operations that add to its compute graph."""

    def __init__(self, f: GGUF, hparams: Hyperparameters, graph: ComputeGraph, context: Context) -> None:
        self.f, self.hparams, self.graph, self.context = f, hparams, graph, context
        self.tensors = Tensors(f)
        blocks = hparams.count("block_count")
        self.block_count = blocks - hparams.count("nextn_predict_layers", 0, minimum=0, maximum=blocks - 1)
        self.tensors.mark_used(*(name for name in f.tensors if is_mtp_tensor(name, self.block_count, blocks)))
        self.embedding_length = multiple_of_32(hparams, "embedding_length")
        self.uses_layer_norm = hparams.has(LAYER_EPSILON) and not hparams.has(RMS_EPSILON)
        self.eps = hparams.positive(LAYER_EPSILON if self.uses_layer_norm else RMS_EPSILON, maximum=1.0)
        self.heads: Sequence[Heads] = read_heads(hparams, self.embedding_length, self.block_count)
        self.attention, self.states = Attention(graph, context, self.eps), StatePool(graph)
        self.ids, self.output_indices = graph.region(4 * graph.batch), graph.region(4 * graph.outputs)
        self.block_starts: list[int] = []  # the first op of each layer
        self.output_start = 0
        # int32 [batch]: the segment of a text pair that each token belongs to, 0 or 1.
        self.token_types = graph.region(4 * graph.batch)
        self.type_count = 1
        self.captured_inputs: Buffer | None = None  # the inputs of the layers of `capture_inputs`, concatenated
        self._captured_layers: Sequence[int] = ()
        self.has_cross_layer_inputs = False  # layers have inputs other than the residual stream
        self.residual: Buffer | None = None
        self.final_states_buffer: Buffer | None = None
        self.final_states_end = 0
        self.logits_buffer: Buffer | None = None
        self._has_bias: dict[str, bool] = {}  # by kind of matrix or norm

    def sequence_caches(self) -> Sequence[SequenceCache]:
        """Return new, empty caches for a sequence."""
        rings = [PageTable(ring) for ring in self.attention.rings.values()]
        return [*rings, *([RecurrentState(self.states)] if self.states.nbytes else [])]

    @property
    def cache_bytes(self) -> int:
        """The memory of the caches of all sequences."""
        return sum(ring.nbytes for ring in self.attention.rings.values()) + self.states.nbytes

    def has(self, name: str) -> bool:
        """Return whether the file has a tensor of this name."""
        return self.tensors.has(name)

    def n_rows(self, name: str) -> int:
        """Return the number of rows of a matrix whose output is the input of another matrix. Raises LocalInferError
        unless it is a multiple of 32."""
        tensor = self.f.tensors.get(f"{name}.weight")
        if tensor is None:
            raise self.f.error(f"tensor {name}.weight", "is missing")
        if tensor.shape[0] % 32:
            what = f"has {tensor.shape[0]} rows; they must be a multiple of 32"
            raise self.f.error(f"tensor {name}.weight", what)
        return tensor.shape[0]

    def ignore(self, *names: str) -> None:
        """Accept these tensors although nothing is computed with them."""
        self.tensors.mark_used(*names)

    def finish(self) -> None:
        """Raise UnsupportedError for metadata or tensors of the file that the graph does not use."""
        self.tensors.reject_unused()
        self.hparams.reject_unused()

    # --- tokens ---

    def embed(self, factor: float = 1.0) -> Buffer:
        """Return the residual stream: a row of token_embd for each token, times a factor."""
        self.residual = self.lookup("token_embd", factor)
        return self.residual

    def lookup(self, name: str, factor: float = 1.0) -> Buffer:
        """Return a row of an embedding matrix for each token, times a factor."""
        return self._lookup(f"{name}.weight", self.n_vocab, self.embedding_length, self.ids, factor)

    def add_positions(self, x: Buffer) -> None:
        """Add the row of position_embd at each token's position to x. There are as many rows as the trained context has
        positions."""
        count = self.hparams.count("context_length")
        if self.context.n_ctx > count or self.context.context_shift:
            raise self.hparams.unsupported("context_length", f"a context of more than its {count} learned positions")
        with self.graph.reuse_buffers():
            self.add(x, self._lookup("position_embd.weight", count, x.n, self.attention.positions, 1.0))

    def add_types(self, x: Buffer) -> None:
        """Add a row of token_types to x: the segment of a text pair that each token belongs to. Single texts are
        segment 0."""
        count = self.f.get("tokenizer.ggml.token_type_count", int)
        if not 1 <= count <= MAX_TOKEN_TYPES:
            raise self.f.error("tokenizer.ggml.token_type_count", f"is {count}; it must be 1 to {MAX_TOKEN_TYPES}")
        self.type_count = count
        with self.graph.reuse_buffers():
            self.add(x, self._lookup("token_types.weight", count, x.n, self.token_types, 1.0))

    def per_layer_inputs(self, x: Buffer, size: int) -> Buffer:
        """Return `size` values for each layer, layer after layer, of which `gate` takes a slice: the sum of the token's
        row of per_layer_token_embd and a projection of x."""
        self.has_cross_layer_inputs = True
        n = multiple_of_32(self.hparams, "embedding_length_per_layer_input") * self.block_count
        y = self._lookup("per_layer_token_embd.weight", self.n_vocab, n, self.ids, math.sqrt(size / 2))
        with self.graph.reuse_buffers():
            projected = self.matmul(x, "per_layer_model_proj", n)  # the factor n_embd^-1/2 only affects the epsilon
            self.norm_groups(projected, size, "per_layer_proj_norm.weight", eps=self.eps * x.n, out=projected)
            self.add(y, projected, math.sqrt(1 / 2))
        return y

    def _lookup(self, name: str, rows: int, n: int, numbers: Region, factor: float) -> Buffer:
        """Return the row of a tensor at each number."""
        weight = self.tensors.tensor(name, rows, n)
        fmt, x, row_bytes = FORMATS[weight.type], self.graph.buffer(n), weight.nbytes // rows
        self.graph.op(
            name,
            GET_ROWS.with_kernels(fmt.get_rows_kernel, fmt.get_rows_kernel),
            x.rows,
            constants={"format_module": fmt.format_module},
            cost=CostModel(token=Cost(row_bytes)),
            ids=numbers,
            w=weight,
            row_bytes=row_bytes,
            n=x.n,
            y=x,
            factor=float(np.float32(factor)),
        )
        return x

    @property
    def n_vocab(self) -> int:
        """The number of tokens in the vocabulary, which is the number of rows of the embedding. Without a vocabulary in
        the file, the number of rows."""
        tokens, name = self.f.metadata.get("tokenizer.ggml.tokens"), "token_embd.weight"
        if isinstance(tokens, StringArray):
            return len(tokens)
        return self.f.tensors[name].shape[0] if name in self.f.tensors else 0

    def final_states(self, x: Buffer, norm: str = "") -> Buffer:
        """Return the hidden states of the output tokens, after a norm if one is given: the basis of embeddings and
        logits. The file may have a classifier on top of them (`localinfer.embedding.classifier`)."""
        self._capture_input(self.block_count, x)
        self.output_start = len(self.graph.ops)
        picked = self.graph.buffer(x.n, self.graph.output_rows)
        self.graph.op("gather_outputs", GATHER_ROWS, picked.rows, x=x, numbers=self.output_indices, n=x.n, y=picked)
        self.final_states_buffer = self.norm(picked, norm) if norm else picked
        self.final_states_end = len(self.graph.ops)
        self.tensors.mark_used(*CLASSIFIER)
        self.hparams.accept("pooling_type", "classifier.output_labels", "classifier.pooling_type")
        return self.final_states_buffer

    def logits(self, x: Buffer, *, scale: float = 1.0, cap: float = 0.0, norm: str = "output_norm") -> None:
        """Add the output layer for the output tokens. Without a matrix of its own, it uses the token embedding.
        Encoders have no output layer."""
        states = self.final_states(x, norm)
        if not self.context.causal:
            return
        self.logits_buffer = self.matmul(states, self.output, self.n_vocab)
        if scale != 1.0 or cap:
            self.soft_cap(self.logits_buffer, scale, cap)

    @property
    def output(self) -> str:
        """The name of the output layer's matrix."""
        return "output" if self.tensors.has("output.weight") else "token_embd"

    # --- layers ---

    def blocks(self) -> Iterator[Block]:
        """Iterate over the layers. Buffers that one layer creates are reused by the next."""
        for number, heads in enumerate(self.heads):
            self.block_starts.append(len(self.graph.ops))
            self._capture_input(number, self.residual)
            with self.graph.reuse_buffers():
                yield Block(number, heads)

    def capture_inputs(self, blocks: Sequence[int]) -> None:
        """Keep the inputs of these layers until the end of the graph, for a draft head. The number after the last layer
        stands for its output. Call it before the first layer."""
        self._captured_layers, self.captured_inputs = blocks, self.graph.buffer(len(blocks) * self.embedding_length)

    def _capture_input(self, number: int, x: Buffer | None) -> None:
        for index, layer in enumerate(self._captured_layers):
            if layer == number and x and self.captured_inputs:
                self.graph.op(
                    "input", COPY, x.rows, chunks=(0, 4), x=x, x_n=x.n, x_first=0, n=x.n, y=self.captured_inputs,
                    y_n=self.captured_inputs.n, y_first=index * x.n,
                )  # fmt: skip

    def block_ops(self, number: int) -> tuple[int, int]:
        """Return the range of ops of a layer: first and end."""
        ends = [*self.block_starts[1:], self.output_start]
        return self.block_starts[number], ends[number]

    # --- rows ---

    def norm(self, x: Buffer, name: str, *, in_place: bool = False) -> Buffer:
        """Return norm(x) * weight (+ bias), in a new buffer unless `in_place`: LayerNorm if the metadata has its
        epsilon, else RMSNorm."""
        y = x if in_place else self.graph.buffer(x.n, x.rows)
        weight = self.tensors.vector(self.tensors.full_name(name), x.n)
        if self.uses_layer_norm:
            self.graph.op(
                name, LAYER_NORM, x.rows, constants=self.graph.layouts, chunks=(0, 4), x=x, weight=weight,
                bias=self.bias(name, x.n) or 0, n=x.n, eps=self.eps, y=y, q=y.quantized,
            )  # fmt: skip
        else:
            self.graph.op(
                name, RMS_NORM, x.rows, constants=self.graph.layouts, chunks=(0, 4), x=x, weight=weight, n=x.n,
                eps=self.eps, y=y, q=y.quantized,
            )  # fmt: skip
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
        """Normalise every `size` values of x by RMSNorm, with the weights of a tensor if there is one. The weights are
        the same for all groups, or differ with `per_group_weight`."""
        y, shape = out or self.graph.buffer(x.n, x.rows), (x.n // size, size) if per_group_weight else (size,)
        self.graph.op(
            tensor or "norm_groups", NORM_GROUPS, x.rows, chunks=(1, 4), x=x, count=x.n // size, size=size,
            weight=self.tensors.floats(tensor, *shape) if tensor else 0, step=size if per_group_weight else 0,
            eps=eps or self.eps,
            y=y,
        )  # fmt: skip
        return y

    def add_norm(self, x: Buffer, branch: Buffer, name: str) -> None:
        """Add norm(branch) * weight to x. Overwrites the branch."""
        if self.uses_layer_norm:
            self.add(x, self.norm(branch, name))
            return
        weight = self.tensors.vector(f"{name}.weight", x.n)
        self.graph.op(name, ADD_NORM, x.rows, chunks=(0, 4), branch=branch, weight=weight, n=x.n, eps=self.eps, x=x)

    def add(self, x: Buffer, branch: Buffer, factor: float = 1.0) -> None:
        """Add factor * branch to x."""
        self.graph.op("add", ADD, x.rows, chunks=(0, 4), branch=branch, factor=factor, n=x.n, x=x)

    def add_vector(self, x: Buffer, tensor: str) -> Buffer:
        """Add a tensor of shape (n,) to each row of x."""
        self.graph.op(tensor, ADD_BIAS, x.rows, bias=self.tensors.vector(tensor, x.n), n=x.n, x=x)
        return x

    def persistent_buffer(self, n: int) -> Buffer:
        """Return a buffer of n values per token that all layers can use. Call it before the first layer."""
        self.has_cross_layer_inputs = True
        return self.graph.buffer(n)

    def copy(self, x: Buffer, to: Buffer) -> None:
        """Copy x to a buffer of the same size."""
        self.graph.op("copy", COPY, x.rows, chunks=(0, 4), x=x, x_n=x.n, x_first=0, n=x.n, y=to, y_n=to.n, y_first=0)

    def scalar(self, tensor: str) -> float:
        """Return the only value of a tensor."""
        return float(self.tensors.vector(tensor, 1).data.view(np.float32)[0])

    def scale(self, x: Buffer, factor: float) -> None:
        """Multiply x by a factor, in place."""
        self.soft_cap(x, factor, 0.0)

    def soft_cap(self, x: Buffer, factor: float, cap: float) -> None:
        """Replace x with cap * tanh(factor * x / cap), or with factor * x if cap is 0."""
        self.graph.need_scratch(64)
        self.graph.op("soft_cap", SOFT_CAP, x.rows, chunks=(1, 4), factor=factor, cap=cap, n=x.n, x=x)

    # --- matrices ---

    def matmul(self, x: Buffer, name: str, n_out: int, *, add_to: Buffer | None = None, barrier: bool = True) -> Buffer:
        """Return weight . x (+ bias), or add it to `add_to`. The product is multiplied with the matrix's scale."""
        return self._product(x, self.tensors.tensor(f"{name}.weight", n_out, x.n), name, 0, n_out, add_to, barrier)

    def slices(self, x: Buffer, name: str, *n_outs: int) -> Sequence[Buffer]:
        """Return the products of several matrices that the file stores as the rows of one."""
        weight, first, results = self.tensors.tensor(f"{name}.weight", sum(n_outs), x.n), 0, []
        for n_out in n_outs:
            is_last = first + n_out == sum(n_outs)
            results.append(self._product(x, row_slice(weight, first, n_out), name, first, sum(n_outs), None, is_last))
            first += n_out
        return results

    def _product(
        self, x: Buffer, weight: Tensor, name: str, first: int, whole: int, add_to: Buffer | None, barrier: bool
    ) -> Buffer:
        bias, factor = self.bias(name, whole), self.tensors.scale(name)
        if bias is not None and weight.shape[0] != whole:
            bias = row_slice(bias, first, weight.shape[0])
        if bias is not None and add_to is not None:
            self.graph.op(f"{name}.bias", ADD_BIAS, x.rows, bias=bias, n=add_to.n, x=add_to)
            bias = None
        if factor == 1.0:
            return matrix_products.matmul(self.graph, x, weight, add_to=add_to, bias=bias, barrier=barrier)
        y = matrix_products.matmul(self.graph, x, weight)
        if add_to is not None:
            self.add(add_to, y, factor)
            return add_to
        self.scale(y, factor)
        if bias is not None:
            self.graph.op(f"{name}.bias", ADD_BIAS, x.rows, bias=bias, n=y.n, x=y)
        return y

    def bias(self, name: str, *shape: int) -> Tensor | None:
        """Return the bias of a matrix or a norm, if the file has it. Either all layers have it or none."""
        return self.tensors.floats(f"{name}.bias", *shape) if self.has_bias(name.rpartition(".")[2]) else None

    def has_bias(self, kind: str) -> bool:
        """Return whether a matrix or norm of this kind has a bias in any layer."""
        if kind not in self._has_bias:
            names = [kind, *(f"blk.{number}.{kind}" for number in range(self.block_count))]
            self._has_bias[kind] = any(self.tensors.has(f"{each}.bias") for each in names)
        return self._has_bias[kind]

    def feed_forward(
        self, h: Buffer, blk: Block, activation: str, *, gated: bool = True, std_multiplier: float = -math.inf
    ) -> Buffer:
        """Return act(gate . h) * (up . h), the input of ffn_down, or act(up . h) if not `gated`.

        Without a gate matrix, the gate is the first half of the rows of ffn_up. With a finite `std_multiplier`, gate
        values below mean + std_multiplier * standard deviation become 0, and the threshold is subtracted from the
        others.
        """
        n, up = multiple_of_32(self.hparams, "feed_forward_length", self.block_count, blk.number), f"{blk}ffn_up"
        if not gated:
            return self.gate(self.matmul(h, up, n), None, activation)
        if self.tensors.has(f"{up}.weight") and self.f.tensors[f"{up}.weight"].shape[0] == 2 * n:
            gate, values = self.slices(h, up, n, n)
        else:
            gate, values = self.matmul(h, f"{blk}ffn_gate", n, barrier=False), self.matmul(h, up, n)
        if math.isfinite(std_multiplier):
            self.graph.op(
                f"{blk}keep_largest", GAUSSIAN_TOPK, gate.rows, chunks=(0, 4), deviations=std_multiplier, n=n, x=gate
            )
        return self.gate(gate, values, activation)

    def gate(self, gate: Buffer, up: Buffer | None, activation: str = "none", *, first: int = 0) -> Buffer:
        """Replace gate with act(gate) * up[first : first + gate.n], or with act(gate) if there is no `up`."""
        few, many = ({**layout, "activation": activation} for layout in self.graph.layouts)
        name = f"blk.{len(self.block_starts) - 1}.gated"
        self.graph.op(
            name, GATED_ACTIVATION, gate.rows, constants=(few, many), chunks=(1, 4), up=up or 0, up_n=up.n if up else 0,
            up_first=first, n=gate.n, gate=gate, q=gate.quantized,
        )  # fmt: skip
        return gate


def is_mtp_tensor(name: str, first: int, end: int) -> bool:
    """Return whether a tensor belongs to the layers first .. end - 1, which are MTP layers."""
    return any(name.startswith(f"blk.{number}.") for number in range(first, end))


def multiple_of_32(hparams: Hyperparameters, key: str, blocks: int = 1, block: int = 0) -> int:
    """Return a length that must be a multiple of 32: one for all layers, or the layer's entry of the file's array. The
    last entry also applies to MTP layers."""
    n = hparams.counts(key, blocks, minimum=0)[min(block, blocks - 1)]
    if n % 32 or not n:
        raise hparams.error(key, f"is {n}; it must be a multiple of 32")
    return n
