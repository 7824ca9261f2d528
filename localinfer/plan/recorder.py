"""The words that architectures are written in: each records the ops of one step of a forward pass.

Every tensor is checked, by name, shape and type, when it is first mentioned; an architecture file only says what is
computed. A matrix or a norm is named without the `.weight` of its tensor: where the file has a `.bias` of that name, it
is added. `tests/naive.py` computes the same words in plain numpy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from localinfer.files.gguf import GGUF, StringArray, Tensor
from localinfer.ops.calls import (
    ADD,
    ADD_BIAS,
    ADD_NORM,
    CONVOLVE,
    GATED,
    GET_ROWS,
    HALVES,
    LAYER_NORM,
    NORM_HEADS,
    PICK,
    RECUR,
    RMS_NORM,
    RMS_NORM_GROUPS,
    SOFT_CAP,
)
from localinfer.ops.layout import convolution_scratch_bytes
from localinfer.plan.attention import NO_NORMS, Attention, Context, HeadNorms
from localinfer.plan.buffers import Buffer, Region
from localinfer.plan.experts import Networks, Router, choose, mix, read_router
from localinfer.plan.heads import Heads, read_heads
from localinfer.plan.keys import Keys, sliding
from localinfer.plan.memory import Memory
from localinfer.plan.plan import Plan
from localinfer.plan.recurrence import Recurrence, read_recurrence
from localinfer.plan.rope import BASE, Rope, plain_rope, read_rope
from localinfer.plan.state import State
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


RMS_EPSILON, LAYER_EPSILON = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


class Recorder:
    """Records one model's forward pass into a plan. `n_ctx` tokens of context are asked for."""

    def __init__(self, f: GGUF, keys: Keys, plan: Plan, context: Context) -> None:
        self.f, self.keys, self.plan, self.context = f, keys, plan, context
        self.tensors = Tensors(f)
        self.block_count = keys.count("block_count")
        self.embedding_length = multiple_of_32(keys, "embedding_length")
        self.by_mean = keys.has(LAYER_EPSILON) and not keys.has(RMS_EPSILON)
        self.eps = keys.positive(LAYER_EPSILON if self.by_mean else RMS_EPSILON, most=1.0)
        self.heads: Sequence[Heads] = read_heads(keys, self.embedding_length, self.block_count)
        self.attention, self.state = Attention(plan, context, self.eps), State(plan)
        self.ids, self.picked_rows = plan.region(4 * plan.batch), plan.region(4 * plan.outputs)
        self.block_starts: list[int] = []  # the number of the first op of each block
        self.head_start = 0
        self.residual: Buffer | None = None
        self.logits_buffer: Buffer | None = None
        self._biased: dict[str, bool] = {}  # whether matrices and norms of this kind have a bias

    @property
    def memories(self) -> Sequence[Memory]:
        """What a sequence keeps of its past."""
        return [*self.attention.rings.values(), *([self.state] if self.state.nbytes else [])]

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of this name."""
        return self.tensors.has(name)

    def finish(self) -> None:
        """Raise for what the file says and the forward pass ignores."""
        self.tensors.refuse_unmentioned()
        self.keys.refuse_unasked()

    # --- tokens ---

    def embed(self, factor: float = 1.0) -> Buffer:
        """The residual stream: a row of token_embd for each token, times a factor."""
        self.residual = self._look_up("token_embd.weight", self.n_vocab, self.ids, factor)
        return self.residual

    def add_positions(self, x: Buffer) -> None:
        """x += a row of position_embd for each token's position, of which there are as many as the trained context."""
        count = self.keys.count("context_length")
        if self.context.n_ctx > count or self.context.wraps:
            raise self.keys.refuse("context_length", f"a context of more than its {count} learned positions")
        with self.plan.recycling():
            self.add(x, self._look_up("position_embd.weight", count, self.attention.positions, 1.0))

    def _look_up(self, name: str, rows: int, numbers: Region, factor: float) -> Buffer:
        """A row of a tensor for each token, by its number."""
        weight = self.tensors.tensor(name, rows, self.embedding_length)
        fmt, x, row_bytes = FORMATS[weight.type], self.plan.buffer(self.embedding_length), weight.nbytes // rows
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

    def logits(self, x: Buffer, *, scale: float = 1.0, cap: float = 0.0, norm: str = "output_norm") -> None:
        """The output layer, for the picked tokens only: the embedding, where it has no matrix of its own."""
        name = "output" if self.tensors.has("output.weight") else "token_embd"
        self.head_start = len(self.plan.ops)
        picked = self.plan.buffer(x.n, self.plan.picked)
        self.plan.op("pick", PICK, picked.rows, x=x, numbers=self.picked_rows, n=x.n, y=picked)
        self.logits_buffer = self.matmul(self.norm(picked, norm), name, self.n_vocab)
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

    def norm(self, x: Buffer, name: str) -> Buffer:
        """norm(x) * weight (+ bias), into a buffer of its own: by the mean square, or by mean and variance where the
        file has the epsilon of that."""
        y, weight = self.plan.buffer(x.n, x.rows), self.tensors.vector(f"{name}.weight", x.n)
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

    def _bias(self, name: str, n: int) -> Tensor | None:
        """The bias of a matrix or a norm, if the file has one: of all blocks, or of none."""
        kind = name.rpartition(".")[2]
        if kind not in self._biased:
            names = [kind, *(f"blk.{number}.{kind}" for number in range(self.block_count))]
            self._biased[kind] = any(self.tensors.has(f"{each}.bias") for each in names)
        return self.tensors.vector(f"{name}.bias", n) if self._biased[kind] else None

    def feed_forward(self, h: Buffer, blk: Block, activation: str, *, gated: bool = True) -> Buffer:
        """act(gate . h) * (up . h), the input of ffn_down; act(up . h) if it is not gated. Without a matrix for the
        gate, that is the first half of the rows of `up`."""
        n, up = multiple_of_32(self.keys, "feed_forward_length", self.block_count, blk.number), f"{blk}ffn_up"
        if not gated:
            return self.gate(blk, self.matmul(h, up, n), 0, activation)
        if self.tensors.has(f"{up}.weight") and self.f.tensors[f"{up}.weight"].shape[0] == 2 * n:
            gate, values = self.slices(h, up, n, n)
        else:
            gate, values = self.matmul(h, f"{blk}ffn_gate", n, meet=False), self.matmul(h, up, n)
        return self.gate(blk, gate, values, activation)

    def gate(self, blk: Block, gate: Buffer, up: Buffer | int, activation: str = "none") -> Buffer:
        """act(gate) * up, or act(gate) where up is 0, in the place of the gate; "none" leaves the gate as it is."""
        few, many = ({**layout, "activation": activation} for layout in self.plan.layouts)
        self.plan.op(
            f"{blk}gated", GATED, gate.rows, constants=(few, many), rounds=(1, 4), up=up, n=gate.n, gate=gate,
            q=gate.quantized,
        )  # fmt: skip
        return gate

    # --- states ---

    def convolve(self, x: Buffer, name: str, width: int, activation: str = "none") -> Buffer:
        """Each column of x over time: act(the weighted sum of a token's value and of those of the width - 1 tokens
        before it (+ bias)). The weights are (n, width), the newest token's last; before position 0, all is 0."""
        y, weight = self.plan.buffer(x.n), self.tensors.floats(f"{name}.weight", x.n, width)
        self.plan.need_scratch(convolution_scratch_bytes(width))
        self.plan.op(
            name, CONVOLVE, x.rows, constants={"activation": activation}, rounds=(1, 4), x=x, weight=weight,
            bias=self._bias(name, x.n) or 0, width=width, n=x.n, tail=self.state.layer(4 * (width - 1) * x.n), y=y,
        )  # fmt: skip
        return y

    def recurrence(self, rule: str) -> Recurrence:
        """How large the states of recurrent heads are, as the file says, and by which rule they learn."""
        return read_recurrence(self.keys, rule)

    def recur(self, blk: Block, x: Buffer, step: Buffer, rate: Buffer | None, shape: Recurrence) -> Buffer:
        """What the states of recurrent heads answer to each token, float32 [token][head][value], after they have
        learnt it: see `localinfer.ops.recur`. `x` is queries, keys and values by the rule "delta", values, keys and
        queries by "add"; `step` and `rate` have a number for each head."""
        y, numbers = self.plan.buffer(shape.heads * shape.value), (shape.heads, *([1] if shape.rule == "add" else []))
        bias = self.tensors.vector(f"{blk}ssm_dt.bias", shape.heads)
        state = self.state.layer(4 * shape.heads * shape.key * shape.value)
        self.plan.op(
            f"{blk}recur", RECUR[shape.rule], x.rows, constants={"key": shape.key, "value": shape.value},
            rounds=(1, 4), x=x, stride=4 * x.n, heads=shape.heads, groups=shape.groups, step=step, rate=rate or 0,
            work=Work(Amount(state.nbytes), Amount(fmas=3 * state.nbytes // 4)),
            a=self.tensors.floats(f"{blk}ssm_a", *numbers), bias=bias, state=state, y=y,
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

    def router(self, gating: str = "softmax", *, normed: bool = False) -> Router:
        """How experts are chosen, as the file says; what it does not say is the architecture's."""
        if not any(self.has(f"blk.{number}.ffn_gate_inp.weight") for number in range(self.block_count)):
            raise self.keys.error("expert_count", "says that there are experts, but no block has a router")
        return read_router(self.keys, gating, normed=normed)

    def experts(self, h: Buffer, blk: Block, router: Router, activation: str) -> Buffer:
        """The weighted sum of what the experts that see each token make of h."""
        n = multiple_of_32(self.keys, self._expert_length, self.block_count, blk.number)
        logits = self.matmul(h, f"{blk}ffn_gate_inp", router.count)
        choice = choose(self.plan, f"{blk}experts", logits, router, self._bias(f"{blk}exp_probs_b", router.count))
        shapes = {"gate": (n, h.n), "up": (n, h.n), "down": (h.n, n)}
        weights = {
            name: self.tensors.tensor(f"{blk}ffn_{name}_exps.weight", router.count, *shape)
            for name, shape in shapes.items()
        }
        return mix(self.plan, f"{blk}experts", h, choice, router, Networks(**weights), activation)

    @property
    def _expert_length(self) -> str:
        """The key of the values between an expert's matrices."""
        own, common = "expert_feed_forward_length", "feed_forward_length"
        self.keys.name(common)  # which a mixture has even where no block is without experts
        return own if self.keys.has(own) else common

    # --- attention ---

    def rope(self, pairs: str) -> Rope:
        """The rotary embedding of the file, stretched as it says."""
        return read_rope(self.keys, self.tensors, pairs, self.heads[0].key, self.context.n_ctx)

    def rope_swa(self, pairs: str, base: str = "") -> Rope:
        """That of layers with a sliding window, which is not stretched; its base is the one of the key `base`, if that
        is given and the file does not say another one."""
        usual = self.keys.positive(base, BASE) if base else BASE
        return plain_rope(self.keys, pairs, self.heads[0].key, usual)

    def sliding_window(self, default: int = 0) -> int:
        """How many tokens a layer with a window looks at, 0 if there is no such layer."""
        return self.keys.count("attention.sliding_window", default, least=0)

    def sliding(self, pattern: int, default_window: int = 0) -> Sequence[bool]:
        """Whether each block has the window: as the file says, or all but the last of every `pattern`; none has, where
        there is no window."""
        given = sliding(self.keys, self.block_count, pattern)
        return given if self.sliding_window(default_window) else [False] * self.block_count

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
        k: Buffer,
        v: Buffer,
        *,
        rope: Rope | None,
        norm: str = "no",
        window: int = 0,
        scale: float | None = None,
        cap: float = 0.0,
    ) -> Buffer:
        """Every token looks back, at so many tokens as the window has (0: at all); the input of attn_output.

        Heads of queries and keys are normalised by the mean square "before" they turn or "after" it, or by mean and
        variance, "each" with weights of its own, or not ("no"). Scores are multiplied by
        key^-1/2 unless `scale` is given, and kept within `cap` unless that is 0.
        """
        heads, norms = blk.heads, NO_NORMS
        if norm == "each":
            self._norm_heads(q, f"{blk}attn_q_norm", heads.count, heads.key)
            self._norm_heads(k, f"{blk}attn_k_norm", heads.count_kv, heads.key)
        elif norm != "no":
            weights = (self.tensors.vector(f"{blk}attn_{name}_norm.weight", heads.key) for name in "qk")
            norms = HeadNorms(norm, *weights)
        return self.attention.attend(
            str(blk), q, k, v, heads, rope=rope, norms=norms, window=window, scale=scale or heads.key**-0.5, cap=cap
        )

    def _norm_heads(self, x: Buffer, name: str, heads: int, size: int) -> None:
        """Normalise every head with weights of its own."""
        weight = self.tensors.floats(f"{name}.weight", heads, size)
        self.plan.op(name, NORM_HEADS, x.rows, weight=weight, heads=heads, size=size, eps=self.eps, x=x)


def multiple_of_32(keys: Keys, key: str, blocks: int = 1, block: int = 0) -> int:
    """A length that is cut into groups of 32: one for all blocks, or the file's array."""
    n = keys.counts(key, blocks)[block]
    if n % 32:
        raise keys.error(key, f"is {n}; it must be a multiple of 32")
    return n

