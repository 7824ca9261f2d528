"""The plainest words that architectures are written in: for tokens, rows and matrices; and what is known of a model.

What most others are made of; `localinfer.plan.recorder` has all of them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from localinfer.files.gguf import GGUF, StringArray, Tensor
from localinfer.ops.calls import (
    ADD,
    ADD_BIAS,
    ADD_NORM,
    COPY,
    GATED,
    GET_ROWS,
    KEEP_LARGEST,
    LAYER_NORM,
    NORM_PARTS,
    PICK,
    RMS_NORM,
    SOFT_CAP,
)
from localinfer.plan.attention import Attention, Context
from localinfer.plan.buffers import Buffer, Region
from localinfer.plan.heads import Heads, read_heads
from localinfer.plan.keys import Keys
from localinfer.plan.memory.memory import Memory
from localinfer.plan.memory.page_table import PageTable
from localinfer.plan.memory.state import Slots, State
from localinfer.plan.plan import Plan
from localinfer.plan.tensors import Tensors, rows_of
from localinfer.plan.work import Amount, Work
from quant import FORMATS


@dataclass(frozen=True)
class Block:
    """One of the blocks that follow each other: as text, the beginning of its tensors' names."""

    number: int
    heads: Heads

    def __str__(self) -> str:
        return f"blk.{self.number}."


MOST_TYPES = 1024
CLASSIFIER = ("cls.weight", "cls.bias", "cls.norm.weight", "cls.output.weight", "cls.output.bias")
RMS_EPSILON, LAYER_EPSILON = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


class Basics:
    """What is known of a model while its forward pass is recorded into a plan, and words for tokens, rows, matrices."""

    def __init__(self, f: GGUF, keys: Keys, plan: Plan, context: Context) -> None:
        self.f, self.keys, self.plan, self.context = f, keys, plan, context
        self.tensors = Tensors(f)
        blocks = keys.count("block_count")
        self.block_count = blocks - keys.count("nextn_predict_layers", 0, least=0, most=blocks - 1)
        self.tensors.mention(*(name for name in f.tensors if is_of_block(name, self.block_count, blocks)))
        self.embedding_length = multiple_of_32(keys, "embedding_length")
        self.by_mean = keys.has(LAYER_EPSILON) and not keys.has(RMS_EPSILON)
        self.eps = keys.positive(LAYER_EPSILON if self.by_mean else RMS_EPSILON, most=1.0)
        self.heads: Sequence[Heads] = read_heads(keys, self.embedding_length, self.block_count)
        self.attention, self.state = Attention(plan, context, self.eps), Slots(plan)
        self.ids, self.picked_rows = plan.region(4 * plan.batch), plan.region(4 * plan.outputs)
        self.block_starts: list[int] = []  # the number of the first op of each block
        self.head_start = 0
        self.types = plan.region(4 * plan.batch)  # which part of a pair each token is of: 0 or 1
        self.type_count = 1
        self.inputs: Buffer | None = None  # what went into the blocks that `keep_inputs` names, side by side
        self._kept: Sequence[int] = ()
        self.linked = False  # whether blocks need more than what the one before them leaves in the residual stream
        self.residual: Buffer | None = None
        self.states_buffer: Buffer | None = None
        self.states_end = 0
        self.logits_buffer: Buffer | None = None
        self._biased: dict[str, bool] = {}  # whether matrices and norms of this kind have a bias

    def memories(self) -> Sequence[Memory]:
        """What one more sequence keeps of its past: nothing yet."""
        rings = [PageTable(ring) for ring in self.attention.rings.values()]
        return [*rings, *([State(self.state)] if self.state.nbytes else [])]

    @property
    def cache_bytes(self) -> int:
        """The memory of what all sequences keep."""
        return sum(ring.nbytes for ring in self.attention.rings.values()) + self.state.nbytes

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of this name."""
        return self.tensors.has(name)

    def rows(self, name: str) -> int:
        """How many rows a matrix has, of which products are multiplied again."""
        tensor = self.f.tensors.get(f"{name}.weight")
        if tensor is None:
            raise self.f.error(f"tensor {name}.weight", "is missing")
        if tensor.shape[0] % 32:
            what = f"has {tensor.shape[0]} rows; they must be a multiple of 32"
            raise self.f.error(f"tensor {name}.weight", what)
        return tensor.shape[0]

    def ignore(self, *names: str) -> None:
        """The file may have these tensors, but nothing is computed with them."""
        self.tensors.mention(*names)

    def finish(self) -> None:
        """Raise for what the file says and the forward pass ignores."""
        self.tensors.refuse_unmentioned()
        self.keys.refuse_unasked()

    # --- tokens ---

    def embed(self, factor: float = 1.0) -> Buffer:
        """The residual stream: a row of token_embd for each token, times a factor."""
        self.residual = self.look_up("token_embd", factor)
        return self.residual

    def look_up(self, name: str, factor: float = 1.0) -> Buffer:
        """A row of a matrix for each token, times a factor."""
        return self._look_up(f"{name}.weight", self.n_vocab, self.embedding_length, self.ids, factor)

    def add_positions(self, x: Buffer) -> None:
        """x += a row of position_embd for each token's position, of which there are as many as the trained context."""
        count = self.keys.count("context_length")
        if self.context.n_ctx > count or self.context.wraps:
            raise self.keys.refuse("context_length", f"a context of more than its {count} learned positions")
        with self.plan.recycling():
            self.add(x, self._look_up("position_embd.weight", count, x.n, self.attention.positions, 1.0))

    def add_types(self, x: Buffer) -> None:
        """x += a row of token_types for the part of a pair that each token is of; texts that are alone are first
        parts."""
        count = self.f.get("tokenizer.ggml.token_type_count", int)
        if not 1 <= count <= MOST_TYPES:
            raise self.f.error("tokenizer.ggml.token_type_count", f"is {count}; it must be 1 to {MOST_TYPES}")
        self.type_count = count
        with self.plan.recycling():
            self.add(x, self._look_up("token_types.weight", count, x.n, self.types, 1.0))

    def layer_inputs(self, x: Buffer, size: int) -> Buffer:
        """So many values for each block, a block's behind the other's, of which `gate` takes some: a token's row of
        per_layer_token_embd, of which no more is read, and what x says."""
        self.linked = True
        n = multiple_of_32(self.keys, "embedding_length_per_layer_input") * self.block_count
        y = self._look_up("per_layer_token_embd.weight", self.n_vocab, n, self.ids, math.sqrt(size / 2))
        with self.plan.recycling():
            said = self.matmul(x, "per_layer_model_proj", n)  # times n_embd^-1/2, which only the epsilon sees
            self.norm_parts(said, size, "per_layer_proj_norm.weight", eps=self.eps * x.n, into=said)
            self.add(y, said, math.sqrt(1 / 2))
        return y

    def _look_up(self, name: str, rows: int, n: int, numbers: Region, factor: float) -> Buffer:
        """A row of a tensor for each token, by its number."""
        weight = self.tensors.tensor(name, rows, n)
        fmt, x, row_bytes = FORMATS[weight.type], self.plan.buffer(n), weight.nbytes // rows
        self.plan.op(
            name,
            GET_ROWS.by(fmt.get_rows, fmt.get_rows),
            x.rows,
            constants={"room": fmt.room},
            work=Work(token=Amount(row_bytes)),
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
        """The rows that the embedding must have: one for each token of the vocabulary, where the file has one."""
        tokens, name = self.f.metadata.get("tokenizer.ggml.tokens"), "token_embd.weight"
        if isinstance(tokens, StringArray):
            return len(tokens)
        return self.f.tensors[name].shape[0] if name in self.f.tensors else 0

    def states(self, x: Buffer, norm: str = "") -> Buffer:
        """What the picked tokens have become, behind a norm if there is one: what texts are compared by, and what
        logits follow from. A classifier of such states may be in the file (`localinfer.embedding.classifier`)."""
        self._keep_input(self.block_count, x)
        self.head_start = len(self.plan.ops)
        picked = self.plan.buffer(x.n, self.plan.picked)
        self.plan.op("pick", PICK, picked.rows, x=x, numbers=self.picked_rows, n=x.n, y=picked)
        self.states_buffer = self.norm(picked, norm) if norm else picked
        self.states_end = len(self.plan.ops)
        self.tensors.mention(*CLASSIFIER)
        self.keys.understand("pooling_type", "classifier.output_labels", "classifier.pooling_type")
        return self.states_buffer

    def logits(self, x: Buffer, *, scale: float = 1.0, cap: float = 0.0, norm: str = "output_norm") -> None:
        """The output layer, for the picked tokens only: the embedding, where it has no matrix of its own. An encoder,
        whose tokens see those behind them, has none."""
        states = self.states(x, norm)
        if not self.context.causal:
            return
        self.logits_buffer = self.matmul(states, self.output, self.n_vocab)
        if scale != 1.0 or cap:
            self.soft_cap(self.logits_buffer, scale, cap)

    @property
    def output(self) -> str:
        """The matrix of the output layer."""
        return "output" if self.tensors.has("output.weight") else "token_embd"

    # --- blocks ---

    def blocks(self) -> Iterator[Block]:
        """Each block in turn; the memory that one computes in is used again by the next."""
        for number, heads in enumerate(self.heads):
            self.block_starts.append(len(self.plan.ops))
            self._keep_input(number, self.residual)
            with self.plan.recycling():
                yield Block(number, heads)

    def keep_inputs(self, blocks: Sequence[int]) -> None:
        """Have what goes into these blocks stay for somebody who looks at it behind all of them; the number behind the
        last one stands for its output. To be asked for before the first one."""
        self._kept, self.inputs = blocks, self.plan.buffer(len(blocks) * self.embedding_length)

    def _keep_input(self, number: int, x: Buffer | None) -> None:
        for place, kept in enumerate(self._kept):
            if kept == number and x and self.inputs:
                self.plan.op(
                    "input", COPY, x.rows, rounds=(0, 4), x=x, x_n=x.n, x_first=0, n=x.n, y=self.inputs,
                    y_n=self.inputs.n, y_first=place * x.n,
                )  # fmt: skip

    def block_ops(self, number: int) -> tuple[int, int]:
        """The first op of a block, and the first one behind it."""
        ends = [*self.block_starts[1:], self.head_start]
        return self.block_starts[number], ends[number]

    # --- rows ---

    def norm(self, x: Buffer, name: str, *, in_place: bool = False) -> Buffer:
        """norm(x) * weight (+ bias), into a buffer of its own unless `in_place`: by the mean square, or by mean and
        variance where the file has the epsilon of that."""
        y = x if in_place else self.plan.buffer(x.n, x.rows)
        weight = self.tensors.vector(self.tensors.named(name), x.n)
        if self.by_mean:
            self.plan.op(
                name, LAYER_NORM, x.rows, constants=self.plan.layouts, rounds=(0, 4), x=x, weight=weight,
                bias=self.bias(name, x.n) or 0, n=x.n, eps=self.eps, y=y, q=y.quantized,
            )  # fmt: skip
        else:
            self.plan.op(
                name, RMS_NORM, x.rows, constants=self.plan.layouts, rounds=(0, 4), x=x, weight=weight, n=x.n,
                eps=self.eps, y=y, q=y.quantized,
            )  # fmt: skip
        return y

    def norm_parts(
        self,
        x: Buffer,
        size: int,
        tensor: str = "",
        *,
        each: bool = False,
        eps: float | None = None,
        into: Buffer | None = None,
    ) -> Buffer:
        """Every `size` values of x apart, by their mean square: norm(part) * weight, or norm(part) without a tensor;
        the weights are the same for all parts, or `each` has its own."""
        y, shape = into or self.plan.buffer(x.n, x.rows), (x.n // size, size) if each else (size,)
        self.plan.op(
            tensor or "norm_parts", NORM_PARTS, x.rows, rounds=(1, 4), x=x, count=x.n // size, size=size,
            weight=self.tensors.floats(tensor, *shape) if tensor else 0, step=size if each else 0, eps=eps or self.eps,
            y=y,
        )  # fmt: skip
        return y

    def add_norm(self, x: Buffer, branch: Buffer, name: str) -> None:
        """x += norm(branch) * weight; the branch is spoilt."""
        if self.by_mean:
            self.add(x, self.norm(branch, name))
            return
        weight = self.tensors.vector(f"{name}.weight", x.n)
        self.plan.op(name, ADD_NORM, x.rows, rounds=(0, 4), branch=branch, weight=weight, n=x.n, eps=self.eps, x=x)

    def add(self, x: Buffer, branch: Buffer, factor: float = 1.0) -> None:
        """x += factor * branch."""
        self.plan.op("add", ADD, x.rows, rounds=(0, 4), branch=branch, factor=factor, n=x.n, x=x)

    def add_vector(self, x: Buffer, tensor: str) -> Buffer:
        """x += a tensor, the same for all tokens."""
        self.plan.op(tensor, ADD_BIAS, x.rows, bias=self.tensors.vector(tensor, x.n), n=x.n, x=x)
        return x

    def lasting(self, n: int) -> Buffer:
        """Room for n values of each token that all blocks can use, if it is asked for before the first."""
        self.linked = True
        return self.plan.buffer(n)

    def copy(self, x: Buffer, to: Buffer) -> None:
        """A buffer of the same length becomes x."""
        self.plan.op("copy", COPY, x.rows, rounds=(0, 4), x=x, x_n=x.n, x_first=0, n=x.n, y=to, y_n=to.n, y_first=0)

    def number(self, tensor: str) -> float:
        """The one value of a tensor."""
        return float(self.tensors.vector(tensor, 1).data.view(np.float32)[0])

    def scale(self, x: Buffer, factor: float) -> None:
        """x *= factor."""
        self.soft_cap(x, factor, 0.0)

    def soft_cap(self, x: Buffer, factor: float, cap: float) -> None:
        """x = cap * tanh(factor * x / cap), or factor * x where cap is 0."""
        self.plan.need_scratch(64)
        self.plan.op("soft_cap", SOFT_CAP, x.rows, rounds=(1, 4), factor=factor, cap=cap, n=x.n, x=x)

    # --- matrices ---

    def matmul(self, x: Buffer, name: str, n_out: int, *, add_to: Buffer | None = None, meet: bool = True) -> Buffer:
        """weight . x (+ bias), or add_to += weight . x (+ bias); the product is multiplied with the matrix's factor."""
        return self._product(x, self.tensors.tensor(f"{name}.weight", n_out, x.n), name, 0, n_out, add_to, meet)

    def slices(self, x: Buffer, name: str, *n_outs: int) -> Sequence[Buffer]:
        """weight . x (+ bias) of several matrices that the file holds as the rows of one."""
        weight, first, results = self.tensors.tensor(f"{name}.weight", sum(n_outs), x.n), 0, []
        for n_out in n_outs:
            meet = first + n_out == sum(n_outs)
            results.append(self._product(x, rows_of(weight, first, n_out), name, first, sum(n_outs), None, meet))
            first += n_out
        return results

    def _product(
        self, x: Buffer, weight: Tensor, name: str, first: int, whole: int, add_to: Buffer | None, meet: bool
    ) -> Buffer:
        bias, factor = self.bias(name, whole), self.tensors.factor(name)
        if bias is not None and weight.shape[0] != whole:
            bias = rows_of(bias, first, weight.shape[0])
        if bias is not None and add_to is not None:
            self.plan.op(f"{name}.bias", ADD_BIAS, x.rows, bias=bias, n=add_to.n, x=add_to)
            bias = None
        if factor == 1.0:
            return self.plan.matmul(x, weight, add_to=add_to, bias=bias, meet=meet)
        y = self.plan.matmul(x, weight)
        if add_to is not None:
            self.add(add_to, y, factor)
            return add_to
        self.scale(y, factor)
        if bias is not None:
            self.plan.op(f"{name}.bias", ADD_BIAS, x.rows, bias=bias, n=y.n, x=y)
        return y

    def bias(self, name: str, *shape: int) -> Tensor | None:
        """The bias of a matrix or a norm, if the file has one: of all blocks, or of none."""
        return self.tensors.floats(f"{name}.bias", *shape) if self.has_bias(name.rpartition(".")[2]) else None

    def has_bias(self, kind: str) -> bool:
        if kind not in self._biased:
            names = [kind, *(f"blk.{number}.{kind}" for number in range(self.block_count))]
            self._biased[kind] = any(self.tensors.has(f"{each}.bias") for each in names)
        return self._biased[kind]

    def feed_forward(
        self, h: Buffer, blk: Block, activation: str, *, gated: bool = True, least: float = -math.inf
    ) -> Buffer:
        """act(gate . h) * (up . h), the input of ffn_down; act(up . h) if it is not gated. Without a matrix for the
        gate, that is the first half of the rows of `up`. Of the gate, only what is further above its mean than `least`
        standard deviations counts, and as much as it is."""
        n, up = multiple_of_32(self.keys, "feed_forward_length", self.block_count, blk.number), f"{blk}ffn_up"
        if not gated:
            return self.gate(self.matmul(h, up, n), None, activation)
        if self.tensors.has(f"{up}.weight") and self.f.tensors[f"{up}.weight"].shape[0] == 2 * n:
            gate, values = self.slices(h, up, n, n)
        else:
            gate, values = self.matmul(h, f"{blk}ffn_gate", n, meet=False), self.matmul(h, up, n)
        if math.isfinite(least):
            self.plan.op(f"{blk}keep_largest", KEEP_LARGEST, gate.rows, rounds=(0, 4), deviations=least, n=n, x=gate)
        return self.gate(gate, values, activation)

    def gate(self, gate: Buffer, up: Buffer | None, activation: str = "none", *, first: int = 0) -> Buffer:
        """gate = act(gate) * as many values of up, from the `first` one on; act(gate) without up. "none" leaves the
        gate as it is."""
        few, many = ({**layout, "activation": activation} for layout in self.plan.layouts)
        name = f"blk.{len(self.block_starts) - 1}.gated"
        self.plan.op(
            name, GATED, gate.rows, constants=(few, many), rounds=(1, 4), up=up or 0, up_n=up.n if up else 0,
            up_first=first, n=gate.n, gate=gate, q=gate.quantized,
        )  # fmt: skip
        return gate


def is_of_block(name: str, first: int, end: int) -> bool:
    """Whether a tensor is of a block first .. end - 1: the last ones predict further tokens, if anybody wants that."""
    return any(name.startswith(f"blk.{number}.") for number in range(first, end))


def multiple_of_32(keys: Keys, key: str, blocks: int = 1, block: int = 0) -> int:
    """A length that is cut into groups of 32: one for all blocks, or the file's array, whose last one is that of what
    looks further ahead, too."""
    n = keys.counts(key, blocks, least=0)[min(block, blocks - 1)]
    if n % 32 or not n:
        raise keys.error(key, f"is {n}; it must be a multiple of 32")
    return n
