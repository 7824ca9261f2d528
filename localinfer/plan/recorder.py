"""The words that architectures are written in: each records the ops of one step of a forward pass.

Every tensor is checked, by name, shape and type, when it is first mentioned; an architecture file only says what is
computed. A matrix or a norm is named without the `.weight` of its tensor: where the file has a `.bias` of that name, it
is added. `tests/naive.py` computes the same words in plain numpy.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from localinfer.files.gguf import GGUF, StringArray, Tensor
from localinfer.ops.calls import (
    ADD,
    ADD_BIAS,
    ADD_NORM,
    ADD_TO_OTHERS,
    AS_LONG,
    CONVOLVE,
    COPY,
    CORRECT,
    GATE_TOKENS,
    GATED,
    GATHER_HEADS,
    GET_ROWS,
    HALVES,
    KEEP_LARGEST,
    LAYER_NORM,
    NORM_HEADS,
    NORM_PARTS,
    PICK,
    PREDICT,
    PUT_PART,
    RECUR,
    RMS_NORM,
    RMS_NORM_GROUPS,
    SOFT_CAP,
)
from localinfer.ops.layout import convolution_scratch_bytes
from localinfer.plan.attention import NO_NORMS, Attention, Context, HeadNorms
from localinfer.plan.buffers import Buffer, Region, Rows
from localinfer.plan.experts import Choice, Networks, Router, choose, mix, read_router, room_to_choose
from localinfer.plan.heads import Heads, read_heads
from localinfer.plan.keys import Keys, sliding, sources_of_keys
from localinfer.plan.latent import Latent, read_latent
from localinfer.plan.memory import Memory
from localinfer.plan.page_table import PageTable
from localinfer.plan.plan import FEW, Plan
from localinfer.plan.recurrence import Recurrence, read_recurrence
from localinfer.plan.rope import BASE, Rope, plain_rope, read_rope
from localinfer.plan.state import Slots, State
from localinfer.plan.tensors import Tensors, matrix_of, rows_of
from localinfer.plan.work import Amount, Work
from quant import FORMATS
from quant.jit.cpu import target
from quant.products.layout import RUN_WORDS


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


class Recorder:
    """Records one model's forward pass into a plan. `n_ctx` tokens of context are asked for."""

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
        self.linked = False  # whether blocks need more than what the one before them leaves in the residual stream
        self.residual: Buffer | None = None
        self.states_buffer: Buffer | None = None
        self.states_end = 0
        self.logits_buffer: Buffer | None = None
        self._choices: dict[Router, Choice] = {}  # whose memory all blocks share
        self._of_heads: dict[int, tuple[Rows, Region]] = {}  # rows of so many heads, and their runs
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
        self.residual = self._look_up("token_embd.weight", self.n_vocab, self.embedding_length, self.ids, factor)
        return self.residual

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
        name = "output" if self.tensors.has("output.weight") else "token_embd"
        self.logits_buffer = self.matmul(states, name, self.n_vocab)
        if scale != 1.0 or cap:
            self.soft_cap(self.logits_buffer, scale, cap)

    # --- blocks ---

    def blocks(self) -> Iterator[Block]:
        """Each block in turn; the memory that one computes in is used again by the next."""
        for number, heads in enumerate(self.heads):
            self.block_starts.append(len(self.plan.ops))
            with self.plan.recycling():
                yield Block(number, heads)

    def block_ops(self, number: int) -> tuple[int, int]:
        """The first op of a block, and the first one behind it."""
        ends = [*self.block_starts[1:], self.head_start]
        return self.block_starts[number], ends[number]

    # --- rows ---

    def norm(self, x: Buffer, name: str, *, in_place: bool = False) -> Buffer:
        """norm(x) * weight (+ bias), into a buffer of its own unless `in_place`: by the mean square, or by mean and
        variance where the file has the epsilon of that."""
        y, weight = x if in_place else self.plan.buffer(x.n, x.rows), self.tensors.vector(f"{name}.weight", x.n)
        if self.by_mean:
            self.plan.op(
                name, LAYER_NORM, x.rows, constants=self.plan.layouts, rounds=(0, 4), x=x, weight=weight,
                bias=self._bias(name, x.n) or 0, n=x.n, eps=self.eps, y=y, q=y.quantized,
            )  # fmt: skip
        else:
            self.plan.op(
                name, RMS_NORM, x.rows, constants=self.plan.layouts, rounds=(0, 4), x=x, weight=weight, n=x.n,
                eps=self.eps, y=y, q=y.quantized,
            )  # fmt: skip
        return y

    def norm_parts(
        self, x: Buffer, size: int, tensor: str = "", *, eps: float | None = None, into: Buffer | None = None
    ) -> Buffer:
        """Every `size` values of x apart, by their mean square: norm(part) * weight, or norm(part) without a tensor."""
        y, weight = into or self.plan.buffer(x.n, x.rows), self.tensors.vector(tensor, size) if tensor else 0
        self.plan.op(
            tensor or "norm_parts", NORM_PARTS, x.rows, x=x, weight=weight, count=x.n // size, size=size,
            eps=eps or self.eps, y=y,
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
        """weight . x (+ bias), or add_to += weight . x (+ bias)."""
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
        bias = self._bias(name, whole)
        if bias is not None and weight.shape[0] != whole:
            bias = rows_of(bias, first, weight.shape[0])
        if bias is not None and add_to is not None:
            self.plan.op(f"{name}.bias", ADD_BIAS, x.rows, bias=bias, n=add_to.n, x=add_to)
            bias = None
        return self.plan.matmul(x, weight, add_to=add_to, bias=bias, meet=meet)

    def _bias(self, name: str, *shape: int) -> Tensor | None:
        """The bias of a matrix or a norm, if the file has one: of all blocks, or of none."""
        return self.tensors.floats(f"{name}.bias", *shape) if self._has_bias(name.rpartition(".")[2]) else None

    def _has_bias(self, kind: str) -> bool:
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

    # --- heads ---

    def split(self, x: Buffer, heads: int, *sizes: int) -> Sequence[Buffer]:
        """Parts of so many values of all heads that x has, each [token][head][value]."""
        first, parts = 0, []
        for size in sizes:
            parts.append(self.plan.buffer(heads * size))
            self._put_part(x, first, heads, size, parts[-1], 0)
            first += size
        return parts

    def join(self, heads: int, *parts: Buffer) -> Buffer:
        """Heads of these parts, one behind the other."""
        first, y = 0, self.plan.buffer(sum(part.n for part in parts))
        for part in parts:
            self._put_part(part, 0, heads, part.n // heads, y, first)
            first += part.n // heads
        return y

    def _put_part(self, x: Buffer, x_first: int, heads: int, size: int, y: Buffer, y_first: int) -> None:
        self.plan.op(
            "part", PUT_PART, x.rows, rounds=(1, 4), x=x, x_first=x_first, x_step=x.n // heads, heads=heads, size=size,
            y=y, y_first=y_first, y_step=y.n // heads,
        )  # fmt: skip

    def head_matmul(self, x: Buffer, name: str, heads: int, n_out: int) -> Buffer:
        """weight[head] . x[head] of every head, [token][head][n_out]; the file has the matrices as one tensor."""
        size = x.n // heads
        weight = self.tensors.tensor(f"{name}.weight", heads, n_out, size)
        if heads not in self._of_heads:
            padded = -(-self.plan.batch // target().tokens) * target().tokens
            rows = self.plan.rows(heads * padded, FEW * heads, self.plan.tokens)
            self._of_heads[heads] = rows, self.plan.region(8 * (1 + RUN_WORDS * heads))
        rows, runs = self._of_heads[heads]
        of_heads = self.plan.buffer(size, rows)
        self.plan.op(
            f"{name}.gather", GATHER_HEADS, x.rows, constants=self.plan.layouts, rounds=(1, 4), x=x, heads=heads,
            size=size, y=of_heads, q=of_heads.quantized, lined_up=rows.region, runs=runs,
        )  # fmt: skip
        return self.plan.head_matmul(of_heads, weight, runs)

    # --- several streams ---

    def streams(self, x: Buffer, count: int) -> Buffer:
        """So many residual streams side by side, [token][stream][value]: x, and what each matrix of altup_proj makes of
        it, as long as x. What a block does with them is in `localinfer.ops.streams`."""
        xs, matrices = self.plan.buffer(count * x.n), self.tensors.tensor("altup_proj.weight", count - 1, x.n, x.n)
        self._copy(x, xs)
        for number in range(1, count):
            with self.plan.recycling():
                y = self._as_long(self.plan.matmul(x, matrix_of(matrices, number - 1)), x)
                self._copy(y, xs, y_first=number * x.n)
        return xs

    def predict(self, blk: Block, xs: Buffer, count: int) -> tuple[Buffer, Buffer]:
        """What is expected of each stream behind the block, and a copy of the first expectation: the block's input."""
        n = xs.n // count
        first, predicted = self.plan.buffer(n), self.plan.buffer(xs.n)
        self._copy(xs, first)
        m, weight = self._said(blk, first, count), f"{blk}altup_predict_coef.weight"
        self.plan.need_scratch(4 * count * count)
        self.plan.op(
            f"{blk}predict", PREDICT, xs.rows, rounds=(0, 4), x=xs, m=m, count=count, n=n, predicted=predicted,
            weight=self.tensors.floats(weight, count * count, count), first=first,
        )  # fmt: skip
        return predicted, first

    def correct(self, blk: Block, xs: Buffer, predicted: Buffer, y: Buffer, count: int) -> Buffer:
        """All streams by what the block has made of the first, y; the first one now, scaled."""
        first, m, weight = self.plan.buffer(y.n), self._said(blk, y, count), f"{blk}altup_correct_coef.weight"
        self.plan.op(
            f"{blk}correct", CORRECT, xs.rows, rounds=(0, 4), y=y, predicted=predicted, m=m, count=count, n=y.n, x=xs,
            weight=self.tensors.floats(weight, count, count), first=first,
            scale=self.tensors.vector(f"{blk}altup_correct_scale.weight", y.n),
        )  # fmt: skip
        return first

    def add_to_others(self, xs: Buffer, branch: Buffer) -> None:
        """All streams but the first += branch."""
        self.plan.op(
            "add", ADD_TO_OTHERS, xs.rows, rounds=(0, 4), branch=branch, count=xs.n // branch.n, n=branch.n, x=xs
        )

    def merged(self, xs: Buffer, count: int) -> Buffer:
        """The mean of the first stream and of what the matrices of altup_unembd_proj make of the others, as long."""
        n = xs.n // count
        first, y, matrices = self.plan.buffer(n), self.plan.buffer(n), "altup_unembd_proj.weight"
        self._copy(xs, first)
        self._copy(xs, y)
        for number in range(1, count):
            with self.plan.recycling():
                other = self.plan.buffer(n)
                self._copy(xs, other, x_first=number * n)
                matrix = matrix_of(self.tensors.tensor(matrices, count - 1, n, n), number - 1)
                self.add(y, self._as_long(self.plan.matmul(other, matrix), first))
        self.scale(y, 1 / count)
        return y

    def _said(self, blk: Block, x: Buffer, count: int) -> Buffer:
        """What tokens say of how streams go together: a number within 1 for each of them."""
        m = self.matmul(self.norm(x, f"{blk}altup_router_norm"), f"{blk}altup_router", count)
        self.soft_cap(m, 1 / x.n, 1.0)
        return m

    def _copy(self, x: Buffer, y: Buffer, *, x_first: int = 0, y_first: int = 0) -> None:
        """As many values of each row as the narrower one has."""
        self.plan.op(
            "copy", COPY, x.rows, rounds=(0, 4), x=x, x_n=x.n, x_first=x_first, n=min(x.n, y.n), y=y, y_n=y.n,
            y_first=y_first,
        )  # fmt: skip

    def _as_long(self, y: Buffer, x: Buffer) -> Buffer:
        """y, as long as x."""
        self.plan.op("as_long", AS_LONG, x.rows, rounds=(0, 4), x=x, n=x.n, y=y)
        return y

    # --- states ---

    def convolve(self, x: Buffer, name: str, width: int, activation: str = "none") -> Buffer:
        """Each column of x over time: act(the weighted sum of a token's value and of those of the width - 1 tokens
        before it (+ bias)). The weights are (n, width), the newest token's last; before position 0, all is 0."""
        y, weight = self.plan.buffer(x.n), self.tensors.floats(f"{name}.weight", x.n, width)
        self.plan.need_scratch(convolution_scratch_bytes(width))
        self.plan.op(
            name, CONVOLVE, x.rows, constants={"activation": activation}, rounds=(1, 4), x=x, weight=weight,
            bias=self._bias(name, x.n) or 0, width=width, n=x.n, segments=self.state.segments,
            tail=self.state.layer(4 * (width - 1) * x.n), y=y,
        )  # fmt: skip
        return y

    def recurrence(self, rule: str, *, neighbours: bool = False) -> Recurrence:
        """How large the states of recurrent heads are, as the file says, and by which rule they learn: "add", or
        "delta", whose heads of values take turns with the keys unless those that share one are `neighbours`."""
        return read_recurrence(self.keys, rule, neighbours=neighbours)

    def recur(self, blk: Block, x: Buffer, step: Buffer, rate: Buffer | None, shape: Recurrence) -> Buffer:
        """What the states of recurrent heads answer to each token, float32 [token][head][value], after they have
        learnt it: see `localinfer.ops.recur`. `x` is queries, keys and values by the rule "delta", values, keys and
        queries by "add"; `step` and `rate` have a number for each head."""
        y, numbers = self.plan.buffer(shape.heads * shape.value), (shape.heads, *([1] if shape.rule == "add" else []))
        bias = self.tensors.vector(f"{blk}ssm_dt.bias", shape.heads)
        state_bytes = 4 * shape.heads * shape.key * shape.value
        self.plan.op(
            f"{blk}recur", RECUR[shape.rule], x.rows,
            constants={"key": shape.key, "value": shape.value, "share": shape.share},
            rounds=(1, 4), x=x, stride=4 * x.n, heads=shape.heads, groups=shape.groups, step=step, rate=rate or 0,
            work=Work(Amount(state_bytes), Amount(fmas=3 * state_bytes // 4)),
            a=self.tensors.floats(f"{blk}ssm_a", *numbers), bias=bias, segments=self.state.segments,
            state=self.state.layer(state_bytes), y=y,
            skip=self.tensors.floats(f"{blk}ssm_d", *numbers) if shape.rule == "add" else 0,
        )  # fmt: skip
        return y

    def halves(self, x: Buffer, heads: int) -> tuple[Buffer, Buffer]:
        """The first halves of the heads that x has, and their second halves."""
        size = x.n // heads // 2
        first, second = self.plan.buffer(x.n // 2), self.plan.buffer(x.n // 2)
        self.plan.op(
            "halves", HALVES, x.rows, rounds=(1, 4), x=x, size=size, heads=heads, first=first, second=second
        )
        return first, second

    def norm_groups(self, x: Buffer, name: str, groups: int, *, shared: bool) -> Buffer:
        """Every group of x normalised by the mean square, in place; weights are shared, or one for each value."""
        size = x.n // groups
        weight = self.tensors.floats(f"{name}.weight", *([size] if shared else [groups, size]))
        self.plan.op(
            name, RMS_NORM_GROUPS, x.rows, rounds=(1, 4), weight=weight, step=0 if shared else size, groups=groups,
            size=size, eps=self.eps, x=x,
        )  # fmt: skip
        return x

    # --- mixtures of experts ---

    @property
    def has_experts(self) -> bool:
        """Whether the file is of a mixture."""
        return self.keys.count("expert_count", 0, least=0) > 0

    def router(self, gating: str = "softmax", *, normed: bool = False, best: int = 2) -> Router:
        """How experts are chosen, as the file says; what it does not say is the architecture's, such as how many of its
        `best` experts a group is chosen for."""
        if not any(self.has(f"blk.{number}.ffn_gate_inp.weight") for number in range(self.block_count)):
            raise self.keys.error("expert_count", "says that there are experts, but no block has a router")
        self.keys.name("leading_dense_block_count")  # which have no router
        return read_router(self.keys, gating, normed=normed, best=best)

    def experts(
        self, h: Buffer, blk: Block, router: Router, activation: str, *, routed_by: Buffer | None = None
    ) -> Buffer:
        """The weighted sum of what the experts that see each token make of h; the router looks at h, or at something
        else."""
        n = multiple_of_32(self.keys, self._expert_length, self.block_count, blk.number)
        logits = self.matmul(routed_by or h, f"{blk}ffn_gate_inp", router.count)
        biased, scale = self._has_bias("exp_probs_b"), f"{blk}ffn_down_exps.scale"
        bias = self.tensors.vector(f"{blk}exp_probs_b.bias", router.count) if biased else None
        scales = self.tensors.vector(scale, router.count) if self.has(scale) else None
        if router not in self._choices:
            self._choices[router] = room_to_choose(self.plan, router)
        choice = self._choices[router]
        choose(self.plan, f"{blk}experts", logits, router, bias, scales, choice)
        shapes = {"gate": (n, h.n), "up": (n, h.n), "down": (h.n, n)}
        if self.has(f"{blk}ffn_gate_up_exps.weight"):
            shapes = {"gate_up": (2 * n, h.n), "down": (h.n, n)}
        matrices = {
            name: self.tensors.tensor(f"{blk}ffn_{name}_exps.weight", router.count, *shape)
            for name, shape in shapes.items()
        }
        biases = {name: self._bias(f"{blk}ffn_{name}_exps", router.count, n_out) for name, (n_out, _) in shapes.items()}
        return mix(self.plan, f"{blk}experts", h, choice, router, Networks(matrices, biases), activation)

    def shared_expert(self, h: Buffer, blk: Block, activation: str) -> Buffer:
        """What an expert that sees every token makes of h: all of it, or as much as a gate of its own lets through."""
        for key in ("expert_shared_feed_forward_length", "expert_shared_count"):
            self.keys.name(key)  # which the shapes say as well
        up = f"{blk}ffn_up_shexp"
        n = self.rows(up)
        gate, values = self.matmul(h, f"{blk}ffn_gate_shexp", n, meet=False), self.matmul(h, up, n)
        y = self.matmul(self.gate(gate, values, activation), f"{blk}ffn_down_shexp", h.n)
        name = f"{blk}ffn_gate_inp_shexp"
        if self.has(f"{name}.weight"):
            weight = self.tensors.vector(f"{name}.weight", h.n)
            self.plan.op(name, GATE_TOKENS, y.rows, rounds=(0, 4), h=h, weight=weight, n_in=h.n, n=y.n, x=y)
        return y

    @property
    def _expert_length(self) -> str:
        """The key of the values between an expert's matrices."""
        own, common = "expert_feed_forward_length", "feed_forward_length"
        self.keys.name(common)  # which a mixture has even where no block is without experts
        return own if self.keys.has(own) else common

    # --- attention ---

    def rope(self, pairs: str, *, truncate: bool = True, amplified: bool = True) -> Rope:
        """The rotary embedding of the file, stretched as it says; YaRN's ramp lies between whole pairs, or does not
        (`truncate`), and what turns is `amplified`, unless that is left to the scores' scale."""
        length, n_ctx = self._head_length(slides=False), self.context.n_ctx
        return read_rope(self.keys, self.tensors, pairs, length, n_ctx, truncate=truncate, amplified=amplified)

    def rope_swa(self, pairs: str, base: str = "") -> Rope:
        """That of layers with a sliding window, which is not stretched; its base is the one of the key `base`, if that
        is given and the file does not say another one."""
        usual = self.keys.positive(base, BASE) if base else BASE
        return plain_rope(self.keys, pairs, self._head_length(slides=True), usual)

    def _head_length(self, *, slides: bool) -> int:
        """How long keys are in blocks with a window, or in those without one; in most models that is the same."""
        kinds = zip(self.heads, sliding(self.keys, self.block_count, 0), strict=True)
        return next((heads.key for heads, kind in kinds if kind == slides), self.heads[0].key)

    def sliding_window(self, default: int = 0) -> int:
        """How many tokens a layer with a window looks at, 0 if there is no such layer."""
        return self.keys.count("attention.sliding_window", default, least=0)

    def sliding(self, pattern: int, default_window: int = 0, *, first: bool = False) -> Sequence[bool]:
        """Whether each block has the window: as the file says, or all but the last (or the `first`) of every `pattern`;
        none has, where there is no window."""
        given = sliding(self.keys, self.block_count, pattern, first=first)
        return given if self.sliding_window(default_window) else [False] * self.block_count

    def sources_of_keys(self) -> Sequence[int]:
        """Which block's keys and values each block looks at: not its own, where the file says so of the last ones."""
        return sources_of_keys(self.keys, self.block_count, self.sliding(0))

    def latent(self) -> Latent:
        """The shape of latent attention."""
        return read_latent(self.keys)

    def qkv(self, h: Buffer, blk: Block, *, bias: bool = False) -> Sequence[Buffer]:
        """Queries, keys and values, float32 [token][head][value]: of three matrices, or of one. With `bias`, there must
        be one for each.
        """
        if bias:
            self._biased.update(attn_q=True, attn_k=True, attn_v=True, attn_qkv=True)
        heads = blk.heads
        q, k, v = heads.count * heads.key, heads.count_kv * heads.key, heads.count_kv * heads.value
        if self.tensors.has(f"{blk}attn_qkv.weight"):
            return self.slices(h, f"{blk}attn_qkv", q, k, v)
        return [
            self.matmul(h, f"{blk}attn_q", q, meet=False),
            self.matmul(h, f"{blk}attn_k", k, meet=False),
            self.matmul(h, f"{blk}attn_v", v),
        ]

    def attend(
        self,
        blk: Block,
        q: Buffer,
        k: Buffer | None = None,
        v: Buffer | None = None,
        *,
        of: int | None = None,
        rope: Rope | None,
        norm: str = "no",
        window: int = 0,
        scale: float | None = None,
        cap: float = 0.0,
        sinks: bool = False,
    ) -> Buffer:
        """Every token looks back, at so many tokens as the window has (0: at all); the input of attn_output. Without
        keys and values of its own, a block looks at those `of` an earlier one; without values alone, these are the last
        ones of its keys.

        Heads of queries and keys are normalised by the mean square "before" they turn or "after" it, or by mean and
        variance, "each" with weights of its own, or not ("no"). Scores are multiplied by
        key^-1/2 unless `scale` is given, and kept within `cap` unless that is 0. With `sinks`, each head has a
        score of its own that takes a share of the weight and gives nothing.
        """
        heads, norms = blk.heads, NO_NORMS
        if rope and rope.n_rot > heads.key:
            raise self.keys.error("rope.dimension_count", f"is {rope.n_rot}; {blk}attn_q has heads of {heads.key}")
        if norm == "each":
            assert k is not None
            self._norm_heads(q, f"{blk}attn_q_norm", heads.count, heads.key)
            self._norm_heads(k, f"{blk}attn_k_norm", heads.count_kv, heads.key)
        elif norm != "no":
            weights = [self.tensors.vector(f"{blk}attn_{name}_norm.weight", heads.key) for name in ("qk" if k else "q")]
            norms = HeadNorms(norm, *weights)
        self.linked = self.linked or of is not None
        if of is not None and replace(self.heads[of], count=heads.count) != heads:
            what = f"block {blk.number} has other heads than block {of}, whose keys it uses"
            raise self.keys.error("attention.head_count_kv", what)
        return self.attention.attend(
            str(blk), q, k, v, heads, of=None if of is None else f"blk.{of}.", rope=rope, norms=norms, window=window,
            scale=scale or heads.key**-0.5, cap=cap,
            attn_sinks=self.tensors.vector(f"{blk}attn_sinks.weight", heads.count) if sinks else None,
            k_bias=self._key_bias(blk) if k is not None and norm == "no" else None,
        )  # fmt: skip

    def _key_bias(self, blk: Block) -> Tensor | None:
        """What `qkv` has added to all keys of a block, if it has."""
        heads = blk.heads
        q, k, v = heads.count * heads.key, heads.count_kv * heads.key, heads.count_kv * heads.value
        if self.tensors.has(f"{blk}attn_qkv.weight"):
            bias = self._bias(f"{blk}attn_qkv", q + k + v)
            return None if bias is None else rows_of(bias, q, k)
        return self._bias(f"{blk}attn_k", k)

    def _norm_heads(self, x: Buffer, name: str, heads: int, size: int) -> None:
        """Normalise every head with weights of its own."""
        weight = self.tensors.floats(f"{name}.weight", heads, size)
        self.plan.op(name, NORM_HEADS, x.rows, weight=weight, heads=heads, size=size, eps=self.eps, x=x)


def is_of_block(name: str, first: int, end: int) -> bool:
    """Whether a tensor is of a block first .. end - 1: the last ones may predict further tokens, which is not done."""
    return any(name.startswith(f"blk.{number}.") for number in range(first, end))


def multiple_of_32(keys: Keys, key: str, blocks: int = 1, block: int = 0) -> int:
    """A length that is cut into groups of 32: one for all blocks, or the file's array."""
    n = keys.counts(key, blocks)[block]
    if n % 32:
        raise keys.error(key, f"is {n}; it must be a multiple of 32")
    return n
