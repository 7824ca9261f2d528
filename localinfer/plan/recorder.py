"""The words that architectures are written in: each records the ops of one step of a forward pass.

Every tensor is checked, by name, shape and type, when it is first mentioned; an architecture file only says what is
computed. A matrix or a norm is named without the `.weight` of its tensor: where the file has a `.bias` of that name, it
is added. `tests/oracles/naive.py` computes the same words in plain numpy.
"""

from collections.abc import Sequence
from dataclasses import replace

from localinfer.errors import Unsupported
from localinfer.files.gguf import GGUF, Tensor
from localinfer.ops.calls import (
    CONVOLVE,
    GATE_TOKENS,
    GATHER_HEADS,
    HALVES,
    NORM_HEADS,
    PUT_PART,
    RECUR,
    SCAN,
)
from localinfer.ops.layout import LANES_OF_SCAN, convolution_scratch_bytes, scan_scratch_bytes
from localinfer.plan import time_mix
from localinfer.plan.ahead import Ahead, Behind, Through, record_ahead
from localinfer.plan.attention import NO_NORMS, Context, HeadNorms
from localinfer.plan.basics import Basics, Block, multiple_of_32
from localinfer.plan.buffers import Buffer, Region, Rows
from localinfer.plan.experts import Choice, Networks, Router, choose, mix, read_router, room_to_choose
from localinfer.plan.keys import Keys, sliding, sources_of_keys
from localinfer.plan.latent import Latent, read_latent
from localinfer.plan.memory.memory import Memory
from localinfer.plan.plan import FEW, Plan
from localinfer.plan.recurrence import Recurrence, read_recurrence
from localinfer.plan.rope import BASE, Rope, plain_rope, read_growth, read_rope, still_rope
from localinfer.plan.streams import Streams
from localinfer.plan.tensors import rows_of
from localinfer.plan.work import Amount, Work
from quant.jit.cpu import target
from quant.products.layout import RUN_WORDS


class Recorder(Basics):
    """Records one model's forward pass into a plan."""

    def __init__(self, f: GGUF, keys: Keys, plan: Plan, context: Context) -> None:
        super().__init__(f, keys, plan, context)
        self._choices: dict[Router, Choice] = {}  # whose memory all blocks share
        self._of_heads: dict[int, tuple[Rows, Region]] = {}  # rows of so many heads, and their runs
        self.ahead: Ahead | None = None

    def memories(self) -> Sequence[Memory]:
        """What one more sequence keeps of its past: nothing yet."""
        return [*super().memories(), *([Behind(self.ahead)] if self.ahead else [])]

    def look_ahead(self, x: Buffer, through: Through, norm: str = "output_norm") -> None:
        """Have a head predict the token behind the next one, if the file has it and somebody wants that."""
        if self.context.ahead and self.context.causal:
            self.ahead = record_ahead(self, x, through, norm)

    @property
    def head(self) -> tuple[int, int]:
        """The ops of the output layer: the first one, and the one behind the last."""
        return self.head_start, self.ahead.start if self.ahead else len(self.plan.ops)

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

    def streams(self, x: Buffer, count: int) -> Streams:
        """So many residual streams, of which x is the first."""
        return Streams(self, x, count)

    # --- states ---

    def convolve(self, x: Buffer, name: str, width: int, activation: str = "none") -> Buffer:
        """Each column of x over time: act(the weighted sum of a token's value and of those of the width - 1 tokens
        before it (+ bias)). The weights are (n, width), the newest token's last; before position 0, all is 0."""
        y, weight = self.plan.buffer(x.n), self.tensors.floats(f"{name}.weight", x.n, width)
        self.plan.need_scratch(convolution_scratch_bytes(width))
        self.plan.op(
            name, CONVOLVE, x.rows, constants={"activation": activation}, rounds=(1, 4), x=x, weight=weight,
            bias=self.bias(name, x.n) or 0, width=width, n=x.n, segments=self.state.segments,
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

    def shift(self, x: Buffer) -> Buffer:
        """The row of the token before each; of the first one, zeros."""
        return time_mix.shift(self, x)

    def lerp(self, x: Buffer, other: Buffer, weight: Buffer) -> Buffer:
        """x + weight * (other - x)."""
        return time_mix.lerp(self, x, other, weight)

    def lerps(self, x: Buffer, other: Buffer, name: str, count: int) -> Sequence[Buffer]:
        """The same for each of so many rows of weights that a tensor has, which all tokens share."""
        return time_mix.lerps(self, x, other, name, count)

    def time_mix(self, blk: Block, x: time_mix.HeadInputs) -> Buffer:
        """What the states of RWKV-7's heads answer to each token, normalised; all inputs but r and v are spoilt."""
        return time_mix.time_mix(self, blk, x)

    def scan(self, blk: Block, x: Buffer, step: Buffer, b: Buffer, c: Buffer) -> Buffer:
        """What the states of the columns of x answer to each token after they have learnt it: as many numbers for each
        column as b and c have. See `localinfer.ops.scan`."""
        if x.n % LANES_OF_SCAN:
            raise self.keys.refuse("ssm.inner_size", x.n)
        y, numbers = self.plan.buffer(x.n), x.n * b.n
        self.plan.need_scratch(scan_scratch_bytes(b.n))
        self.plan.op(
            f"{blk}scan", SCAN, x.rows, constants={"size": b.n}, rounds=(1, 4), x=x, step=step, b=b, c=c, n=x.n,
            a=self.tensors.floats(f"{blk}ssm_a", x.n, b.n), skip=self.tensors.vector(f"{blk}ssm_d", x.n),
            work=Work(Amount(8 * numbers), Amount(fmas=12 * numbers)), segments=self.state.segments,
            state=self.state.layer(4 * numbers), y=y,
        )  # fmt: skip
        return y

    def halves(self, x: Buffer, heads: int) -> tuple[Buffer, Buffer]:
        """The first halves of the heads that x has, and their second halves."""
        size = x.n // heads // 2
        first, second = self.plan.buffer(x.n // 2), self.plan.buffer(x.n // 2)
        self.plan.op("halves", HALVES, x.rows, rounds=(1, 4), x=x, size=size, heads=heads, first=first, second=second)
        return first, second

    # --- mixtures of experts ---

    @property
    def has_experts(self) -> bool:
        """Whether the file is of a mixture."""
        return self.keys.count("expert_count", 0, least=0) > 0

    def router(
        self, gating: str = "softmax", *, normed: bool = False, best: int = 2, weighs_inputs: bool = False
    ) -> Router:
        """How experts are chosen, as the file says; what it does not say is the architecture's, such as how many of its
        `best` experts a group is chosen for."""
        if not any(self.has(f"blk.{number}.ffn_gate_inp.weight") for number in range(self.block_count)):
            raise self.keys.error("expert_count", "says that there are experts, but no block has a router")
        self.keys.name("leading_dense_block_count")  # which have no router
        return read_router(self.keys, gating, normed=normed, best=best, weighs_inputs=weighs_inputs)

    def experts(
        self,
        h: Buffer,
        blk: Block,
        router: Router,
        activation: str,
        *,
        gated: bool = True,
        routed_by: Buffer | None = None,
    ) -> Buffer:
        """The weighted sum of what the experts that see each token make of h: as feed_forward; the router looks at h,
        or at something else."""
        n = multiple_of_32(self.keys, self._expert_length, self.block_count, blk.number)
        logits = self.matmul(routed_by or h, f"{blk}ffn_gate_inp", router.count)
        biased = self.has_bias("exp_probs_b")
        bias = self.tensors.vector_or_row(f"{blk}exp_probs_b.bias", router.count) if biased else None
        if router not in self._choices:
            self._choices[router] = room_to_choose(self.plan, router)
        choice = self._choices[router]
        shapes = {**({"gate": (n, h.n)} if gated else {}), "up": (n, h.n), "down": (h.n, n)}
        if gated and self.has(f"{blk}ffn_gate_up_exps.weight"):
            shapes = {"gate_up": (2 * n, h.n), "down": (h.n, n)}
        matrices = {
            name: self.tensors.tensor(f"{blk}ffn_{name}_exps.weight", router.count, *shape)
            for name, shape in shapes.items()
        }
        biases = {name: self.bias(f"{blk}ffn_{name}_exps", router.count, n_out) for name, (n_out, _) in shapes.items()}
        scales = {name: self._factors(f"{blk}ffn_{name}_exps", router.count) for name in shapes}
        for name, bias_of in biases.items():
            if bias_of is not None and scales[name] is not None:
                raise self.f.error(f"tensor {blk}ffn_{name}_exps.scale", "beside a bias is not supported", Unsupported)
        weighs = None if router.weighs_inputs else scales.pop("down")
        choose(self.plan, f"{blk}experts", logits, router, bias, weighs, choice)
        networks = Networks(matrices, biases, scales)
        return mix(self.plan, f"{blk}experts", h, choice, router, networks, activation)

    def _factors(self, name: str, count: int) -> Tensor | None:
        """What products of each expert's matrix are multiplied with, if the file has such numbers."""
        self.tensors.mention(f"{name}.input_scale")
        return self.tensors.vector(f"{name}.scale", count) if self.has(f"{name}.scale") else None

    def shared_expert(self, h: Buffer, blk: Block, activation: str, *, gated: bool = True) -> Buffer:
        """What an expert that sees every token makes of h: all of it, or as much as a gate of its own lets through."""
        for key in ("expert_shared_feed_forward_length", "expert_shared_count"):
            self.keys.name(key)  # which the shapes say as well
        up = f"{blk}ffn_up_shexp"
        n = self.rows(up)
        gate = self.matmul(h, f"{blk}ffn_gate_shexp", n, meet=False) if gated else None
        values = self.matmul(h, up, n)
        f = self.gate(gate, values, activation) if gate else self.gate(values, None, activation)
        y = self.matmul(f, f"{blk}ffn_down_shexp", h.n)
        name = f"{blk}ffn_gate_inp_shexp"
        if self.has(f"{name}.weight"):
            weight = self.tensors.vector_or_row(f"{name}.weight", h.n)
            self.plan.op(name, GATE_TOKENS, y.rows, rounds=(0, 4), h=h, weight=weight, n_in=h.n, n=y.n, x=y)
        return y

    @property
    def _expert_length(self) -> str:
        """The key of the values between an expert's matrices."""
        own, common = "expert_feed_forward_length", "feed_forward_length"
        self.keys.name(common)  # which a mixture has even where no block is without experts
        return own if self.keys.has(own) else common

    # --- attention ---

    def rope(self, pairs: str, *, truncate: bool = True, amplified: bool = True, grows: bool = True) -> Rope:
        """The rotary embedding of the file, stretched as it says; YaRN's ramp lies between whole pairs, or does not
        (`truncate`), and what turns is `amplified`, unless that is left to the scores' scale. Queries grow with their
        position as the file says, unless those of other layers do."""
        length, n_ctx = self._head_length(slides=False), self.context.n_ctx
        rope = read_rope(self.keys, self.tensors, pairs, length, n_ctx, truncate=truncate, amplified=amplified)
        return rope if grows else replace(rope, growth=None)

    def growing(self, rate: float, original: int, *, ahead: int = 0) -> Rope | None:
        """Nothing turns, but queries grow with their position, as the file says or at the usual rate: see `Growth`."""
        return still_rope(read_growth(self.keys, rate, original, ahead), self._head_length(slides=False))

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
        stretches: bool = False,
        scale: float | None = None,
        cap: float = 0.0,
        sinks: bool = False,
    ) -> Buffer:
        """Every token looks back, at so many tokens as the window has (0: at all), or at those of its own stretch, if
        positions lie in `stretches` as long as the window (chunked attention); the input of attn_output. Without
        keys and values of its own, a block looks at those `of` an earlier one; without values alone, these are the last
        ones of its keys.

        Heads of queries and keys are normalised by the mean square "before" they turn or "after" it, or "to_one" after
        it without weights, or by mean and variance, "each" with weights of its own, or not ("no"). Scores are
        multiplied by key^-1/2 unless `scale` is given, and kept within `cap` unless that is 0. With `sinks`, each head
        has a score of its own that takes a share of the weight and gives nothing.
        """
        heads, norms = blk.heads, NO_NORMS
        if rope and rope.n_rot > heads.key:
            raise self.keys.error("rope.dimension_count", f"is {rope.n_rot}; {blk}attn_q has heads of {heads.key}")
        shares = ("head_count", q, heads.count * heads.key), ("head_count_kv", k, heads.count_kv * heads.key)
        for key, x, n in (*shares, ("head_count_kv", v, heads.count_kv * heads.value)):
            if x is not None and x.n != n:
                raise self.keys.error(f"attention.{key}", f"makes {n} values of a token in {blk}attn; there are {x.n}")
        if norm == "each":
            assert k is not None
            self._norm_heads(q, f"{blk}attn_q_norm", heads.count, heads.key)
            self._norm_heads(k, f"{blk}attn_k_norm", heads.count_kv, heads.key)
        elif norm == "to_one":
            norms = HeadNorms(norm)
        elif norm != "no":
            weights = [self.tensors.vector(f"{blk}attn_{name}_norm.weight", heads.key) for name in ("qk" if k else "q")]
            norms = HeadNorms(norm, *weights)
        self.linked = self.linked or of is not None
        if of is not None and replace(self.heads[of], count=heads.count) != heads:
            what = f"block {blk.number} has other heads than block {of}, whose keys it uses"
            raise self.keys.error("attention.head_count_kv", what)
        return self.attention.attend(
            str(blk), q, k, v, heads, of=None if of is None else f"blk.{of}.", rope=rope, norms=norms, window=window,
            stretches=stretches, scale=scale or heads.key**-0.5, cap=cap,
            attn_sinks=self.tensors.vector(f"{blk}attn_sinks.weight", heads.count) if sinks else None,
            k_bias=self._key_bias(blk) if k is not None and norm == "no" else None,
        )  # fmt: skip

    def _key_bias(self, blk: Block) -> Tensor | None:
        """What `qkv` has added to all keys of a block, if it has."""
        heads = blk.heads
        q, k, v = heads.count * heads.key, heads.count_kv * heads.key, heads.count_kv * heads.value
        if self.tensors.has(f"{blk}attn_qkv.weight"):
            bias = self.bias(f"{blk}attn_qkv", q + k + v)
            return None if bias is None else rows_of(bias, q, k)
        return self.bias(f"{blk}attn_k", k)

    def _norm_heads(self, x: Buffer, name: str, heads: int, size: int) -> None:
        """Normalise every head with weights of its own."""
        weight = self.tensors.floats(f"{name}.weight", heads, size)
        self.plan.op(name, NORM_HEADS, x.rows, weight=weight, heads=heads, size=size, eps=self.eps, x=x)
