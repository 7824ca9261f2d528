"""The operations that architectures are written with. Each adds ops to the compute graph.

Every tensor is checked by name, shape and type at its first use, so architecture files contain only the computation.
Matrices and norms are named without the suffix `.weight`; if the file has a `.bias` of the same name, it is added.
`tests/oracles/naive.py` implements the same operations in numpy.
"""

from collections.abc import Sequence
from dataclasses import replace

from localinfer.errors import UnsupportedError
from localinfer.gguf.reader import GGUF, Tensor
from localinfer.graph import matrix_products, time_mix
from localinfer.graph.altup import AltUp
from localinfer.graph.attention import NO_NORMS, Context, HeadNorms
from localinfer.graph.buffers import Buffer, Region, Rows
from localinfer.graph.cache.sequence_cache import SequenceCache
from localinfer.graph.compute_graph import MAX_SMALL_BATCH, ComputeGraph
from localinfer.graph.cost import Cost, CostModel
from localinfer.graph.experts import (
    ExpertNetworks,
    Router,
    Routing,
    allocate_routing,
    apply_experts,
    read_router,
    route,
)
from localinfer.graph.graph_builder_base import Block, GraphBuilderBase, multiple_of_32
from localinfer.graph.hyperparameters import Hyperparameters, kv_source_layers, sliding_window_layers
from localinfer.graph.latent_attention import LatentShape, read_latent_shape
from localinfer.graph.mtp import BlockFunction, DraftHead, DraftHeadStates, build_mtp_head
from localinfer.graph.recurrence import Recurrence, read_recurrence
from localinfer.graph.rope import BASE, Rope, plain_rope, read_rope, read_temperature, temperature_only_rope
from localinfer.graph.tensors import row_slice
from localinfer.kernels.layout import SCAN_STRIP, convolution_scratch_bytes, scan_scratch_bytes
from localinfer.kernels.signatures import (
    CONVOLVE,
    COPY_SLICES,
    GATHER_HEADS,
    NORM_HEADS,
    RECUR,
    SELECTIVE_SCAN,
    SIGMOID_GATE,
    SPLIT_HALVES,
)
from quant.jit.cpu import target
from quant.matmul.layout import RUN_WORDS


class GraphBuilder(GraphBuilderBase):
    """Builds the compute graph of a model."""

    def __init__(self, f: GGUF, hparams: Hyperparameters, graph: ComputeGraph, context: Context) -> None:
        super().__init__(f, hparams, graph, context)
        self._routings: dict[Router, Routing] = {}  # memory that all layers share
        # By number of heads: the rows of `head_matmul`, and their runs.
        self._head_rows: dict[int, tuple[Rows, Region]] = {}
        self.draft_head: DraftHead | None = None

    def sequence_caches(self) -> Sequence[SequenceCache]:
        """Return new, empty caches for a sequence."""
        return [*super().sequence_caches(), *([DraftHeadStates(self.draft_head)] if self.draft_head else [])]

    def add_mtp_head(self, x: Buffer, apply_block: BlockFunction, norm: str = "output_norm") -> None:
        """Add the MTP head, if the file has one and speculative decoding asks for it."""
        if self.context.draft_head and self.context.causal:
            self.draft_head = build_mtp_head(self, x, apply_block, norm)

    @property
    def output_ops(self) -> tuple[int, int]:
        """The range of ops of the output layer: first and end."""
        return self.output_start, self.draft_head.start_op if self.draft_head else len(self.graph.ops)

    # --- heads ---

    def split(self, x: Buffer, heads: int, *sizes: int) -> Sequence[Buffer]:
        """Split all heads of x into parts of these sizes, each [token][head][value]."""
        first, parts = 0, []
        for size in sizes:
            parts.append(self.graph.buffer(heads * size))
            self._copy_slices(x, first, heads, size, parts[-1], 0)
            first += size
        return parts

    def join(self, heads: int, *parts: Buffer) -> Buffer:
        """Concatenate parts head by head."""
        first, y = 0, self.graph.buffer(sum(part.n for part in parts))
        for part in parts:
            self._copy_slices(part, 0, heads, part.n // heads, y, first)
            first += part.n // heads
        return y

    def _copy_slices(self, x: Buffer, x_first: int, heads: int, size: int, y: Buffer, y_first: int) -> None:
        self.graph.op(
            "copy_slices", COPY_SLICES, x.rows, chunks=(1, 4), x=x, x_first=x_first, x_step=x.n // heads, heads=heads,
            size=size,
            y=y, y_first=y_first, y_step=y.n // heads,
        )  # fmt: skip

    def head_matmul(self, x: Buffer, name: str, heads: int, n_out: int) -> Buffer:
        """Return weight[head] . x[head] for each head, [token][head][n_out]. All matrices are one tensor."""
        size = x.n // heads
        weight = self.tensors.tensor(f"{name}.weight", heads, n_out, size)
        if heads not in self._head_rows:
            padded = -(-self.graph.batch // target().tokens) * target().tokens
            rows = self.graph.rows(heads * padded, MAX_SMALL_BATCH * heads, self.graph.tokens)
            self._head_rows[heads] = rows, self.graph.region(8 * (1 + RUN_WORDS * heads))
        rows, runs = self._head_rows[heads]
        gathered = self.graph.buffer(size, rows)
        self.graph.op(
            f"{name}.gather", GATHER_HEADS, x.rows, constants=self.graph.layouts, chunks=(1, 4), x=x, heads=heads,
            size=size, y=gathered, q=gathered.quantized, row_count=rows.region, runs=runs,
        )  # fmt: skip
        return matrix_products.head_matmul(self.graph, gathered, weight, runs)

    # --- AltUp ---

    def altup(self, x: Buffer, count: int) -> AltUp:
        """Return `count` residual streams, of which x is the first."""
        return AltUp(self, x, count)

    # --- recurrence ---

    def convolve(self, x: Buffer, name: str, width: int, activation: str = "none") -> Buffer:
        """Return the causal depthwise convolution of x over time: act(weighted sum of the last `width` tokens (+
        bias)).

        The weights are (n, width), the newest token's last. Values before position 0 are 0.
        """
        y, weight = self.graph.buffer(x.n), self.tensors.floats(f"{name}.weight", x.n, width)
        self.graph.need_scratch(convolution_scratch_bytes(width))
        self.graph.op(
            name, CONVOLVE, x.rows, constants={"activation": activation}, chunks=(1, 4), x=x, weight=weight,
            bias=self.bias(name, x.n) or 0, width=width, n=x.n, segments=self.states.segments,
            tail=self.states.add_layer(4 * (width - 1) * x.n), y=y,
        )  # fmt: skip
        return y

    def recurrence(self, rule: str, *, repeat_interleave: bool = False) -> Recurrence:
        """Return the shape of recurrent heads from the metadata.

        `rule` is "add" (Mamba 2) or "delta" (gated delta net). With `repeat_interleave`, value heads that share a key
        head are adjacent, as they always are with "add".
        """
        return read_recurrence(self.hparams, rule, repeat_interleave=repeat_interleave)

    def recur(self, blk: Block, x: Buffer, step: Buffer, rate: Buffer | None, shape: Recurrence) -> Buffer:
        """Update the states of the recurrent heads with each token and return their output, float32
        [token][head][value].

        With the rule "delta", `x` is queries, keys and values; with "add", values, keys and queries. `step` and `rate`
        have one number per head. See `localinfer.kernels.recurrence`.
        """
        y, numbers = self.graph.buffer(shape.heads * shape.value), (shape.heads, *([1] if shape.rule == "add" else []))
        bias = self.tensors.vector(f"{blk}ssm_dt.bias", shape.heads)
        state_bytes = 4 * shape.heads * shape.key * shape.value
        self.graph.op(
            f"{blk}recur", RECUR[shape.rule], x.rows,
            constants={"key": shape.key, "value": shape.value, "heads_per_key": shape.heads_per_key},
            chunks=(1, 4), x=x, stride=4 * x.n, heads=shape.heads, groups=shape.groups, step=step, rate=rate or 0,
            cost=CostModel(Cost(state_bytes), Cost(fmas=3 * state_bytes // 4)),
            a=self.tensors.floats(f"{blk}ssm_a", *numbers), bias=bias, segments=self.states.segments,
            state=self.states.add_layer(state_bytes), y=y,
            skip=self.tensors.floats(f"{blk}ssm_d", *numbers) if shape.rule == "add" else 0,
        )  # fmt: skip
        return y

    def token_shift(self, x: Buffer) -> Buffer:
        """Return the previous token's row for each token; zeros for the first token of a sequence."""
        return time_mix.token_shift(self, x)

    def lerp(self, x: Buffer, other: Buffer, weight: Buffer) -> Buffer:
        """Return x + weight * (other - x)."""
        return time_mix.lerp(self, x, other, weight)

    def lerps(self, x: Buffer, other: Buffer, name: str, count: int) -> Sequence[Buffer]:
        """Return one lerp for each of the `count` rows of a weight tensor."""
        return time_mix.lerps(self, x, other, name, count)

    def time_mix(self, blk: Block, x: time_mix.HeadInputs) -> Buffer:
        """Return the normalised output of RWKV-7's heads. Overwrites all inputs but r and v."""
        return time_mix.time_mix(self, blk, x)

    def selective_scan(self, blk: Block, x: Buffer, step: Buffer, b: Buffer, c: Buffer) -> Buffer:
        """Return the output of Mamba's selective scan. Each column of x has as many state numbers as b and c have
        columns. See `localinfer.kernels.selective_scan`."""
        if x.n % SCAN_STRIP:
            raise self.hparams.unsupported("ssm.inner_size", x.n)
        y, numbers = self.graph.buffer(x.n), x.n * b.n
        self.graph.need_scratch(scan_scratch_bytes(b.n))
        self.graph.op(
            f"{blk}scan", SELECTIVE_SCAN, x.rows, constants={"size": b.n}, chunks=(1, 4), x=x, step=step, b=b, c=c,
            n=x.n,
            a=self.tensors.floats(f"{blk}ssm_a", x.n, b.n), skip=self.tensors.vector(f"{blk}ssm_d", x.n),
            cost=CostModel(Cost(8 * numbers), Cost(fmas=12 * numbers)), segments=self.states.segments,
            state=self.states.add_layer(4 * numbers), y=y,
        )  # fmt: skip
        return y

    def split_halves(self, x: Buffer, heads: int) -> tuple[Buffer, Buffer]:
        """Return the first halves of the heads of x, and their second halves."""
        size = x.n // heads // 2
        first, second = self.graph.buffer(x.n // 2), self.graph.buffer(x.n // 2)
        self.graph.op(
            "halves", SPLIT_HALVES, x.rows, chunks=(1, 4), x=x, size=size, heads=heads, first=first, second=second
        )
        return first, second

    # --- mixtures of experts ---

    @property
    def has_experts(self) -> bool:
        """Whether the model is a mixture of experts."""
        return self.hparams.count("expert_count", 0, minimum=0) > 0

    def router(
        self, gating: str = "softmax", *, normed: bool = False, best_per_group: int = 2, weighs_inputs: bool = False
    ) -> Router:
        """Return the router that the metadata describes; the arguments are the architecture's defaults.
        `best_per_group` experts determine the score of an expert group."""
        if not any(self.has(f"blk.{number}.ffn_gate_inp.weight") for number in range(self.block_count)):
            raise self.hparams.error("expert_count", "is set, but no layer has a router")
        self.hparams.full_name("leading_dense_block_count")  # these layers have no router
        return read_router(
            self.hparams, gating, normed=normed, best_per_group=best_per_group, weighs_inputs=weighs_inputs
        )

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
        """Return the weighted sum of the outputs of the chosen experts; their arguments are as in `feed_forward`. The
        router's input is `routed_by` if given, else h."""
        n = multiple_of_32(self.hparams, self._expert_length_key, self.block_count, blk.number)
        logits = self.matmul(routed_by or h, f"{blk}ffn_gate_inp", router.count)
        biased = self.has_bias("exp_probs_b")
        bias = self.tensors.vector_or_single_row(f"{blk}exp_probs_b.bias", router.count) if biased else None
        if router not in self._routings:
            self._routings[router] = allocate_routing(self.graph, router)
        routing = self._routings[router]
        shapes = {**({"gate": (n, h.n)} if gated else {}), "up": (n, h.n), "down": (h.n, n)}
        if gated and self.has(f"{blk}ffn_gate_up_exps.weight"):
            shapes = {"gate_up": (2 * n, h.n), "down": (h.n, n)}
        matrices = {
            name: self.tensors.tensor(f"{blk}ffn_{name}_exps.weight", router.count, *shape)
            for name, shape in shapes.items()
        }
        biases = {name: self.bias(f"{blk}ffn_{name}_exps", router.count, n_out) for name, (n_out, _) in shapes.items()}
        scales = {name: self._expert_scales(f"{blk}ffn_{name}_exps", router.count) for name in shapes}
        for name, bias_of in biases.items():
            if bias_of is not None and scales[name] is not None:
                raise self.f.error(
                    f"tensor {blk}ffn_{name}_exps.scale", "is not supported together with a bias", UnsupportedError
                )
        weight_scales = None if router.weighs_inputs else scales.pop("down")
        route(self.graph, f"{blk}experts", logits, router, bias, weight_scales, routing)
        networks = ExpertNetworks(matrices, biases, scales)
        return apply_experts(self.graph, f"{blk}experts", h, routing, router, networks, activation)

    def _expert_scales(self, name: str, count: int) -> Tensor | None:
        """Return the scales of the products of each expert's matrix, if the file has them."""
        self.tensors.mark_used(f"{name}.input_scale")
        return self.tensors.vector(f"{name}.scale", count) if self.has(f"{name}.scale") else None

    def shared_expert(self, h: Buffer, blk: Block, activation: str, *, gated: bool = True) -> Buffer:
        """Return the output of the shared expert, multiplied by its sigmoid gate if it has one."""
        for key in ("expert_shared_feed_forward_length", "expert_shared_count"):
            self.hparams.full_name(key)  # the tensor shapes imply their values
        up = f"{blk}ffn_up_shexp"
        n = self.n_rows(up)
        gate = self.matmul(h, f"{blk}ffn_gate_shexp", n, barrier=False) if gated else None
        values = self.matmul(h, up, n)
        f = self.gate(gate, values, activation) if gate else self.gate(values, None, activation)
        y = self.matmul(f, f"{blk}ffn_down_shexp", h.n)
        name = f"{blk}ffn_gate_inp_shexp"
        if self.has(f"{name}.weight"):
            weight = self.tensors.vector_or_single_row(f"{name}.weight", h.n)
            self.graph.op(name, SIGMOID_GATE, y.rows, chunks=(0, 4), h=h, weight=weight, n_in=h.n, n=y.n, x=y)
        return y

    @property
    def _expert_length_key(self) -> str:
        """The key of the hidden size of an expert."""
        expert_key, common_key = "expert_feed_forward_length", "feed_forward_length"
        self.hparams.accept(common_key)  # mixtures have it even if all layers have experts
        return expert_key if self.hparams.has(expert_key) else common_key

    # --- attention ---

    def rope(self, pairs: str, *, truncate: bool = True, amplified: bool = True, with_temperature: bool = True) -> Rope:
        """Return the rotary embedding of the file, with its context extension.

        `pairs` are "interleaved" or "halves". `truncate` rounds YaRN's ramp to whole pairs. If `amplified`, rotated
        values include the attention factor; otherwise the scale of the scores includes it. `with_temperature` applies
        the file's attention temperature to the queries.
        """
        length, n_ctx = self._head_length(slides=False), self.context.n_ctx
        rope = read_rope(self.hparams, self.tensors, pairs, length, n_ctx, truncate=truncate, amplified=amplified)
        return rope if with_temperature else replace(rope, temperature=None)

    def temperature_rope(self, rate: float, original: int, *, offset: int = 0) -> Rope | None:
        """Return a rotary embedding that rotates nothing but scales queries by their attention temperature. The
        arguments are defaults for the metadata. See `AttentionTemperature`."""
        return temperature_only_rope(
            read_temperature(self.hparams, rate, original, offset), self._head_length(slides=False)
        )

    def rope_swa(self, pairs: str, base: str = "") -> Rope:
        """Return the rotary embedding of sliding-window layers, which has no context extension. Its default base is the
        value of the key `base`, if one is given."""
        usual = self.hparams.positive(base, BASE) if base else BASE
        return plain_rope(self.hparams, pairs, self._head_length(slides=True), usual)

    def _head_length(self, *, slides: bool) -> int:
        """Return the key size of layers with (`slides`) or without a sliding window."""
        kinds = zip(self.heads, sliding_window_layers(self.hparams, self.block_count, 0), strict=True)
        return next((heads.key for heads, kind in kinds if kind == slides), self.heads[0].key)

    def sliding_window(self, default: int = 0) -> int:
        """Return the sliding window in tokens, 0 if there is none."""
        return self.hparams.count("attention.sliding_window", default, minimum=0)

    def sliding_layers(self, pattern: int, default_window: int = 0, *, first: bool = False) -> Sequence[bool]:
        """Return for each layer whether it has a sliding window: as the file says, or all but the last (or the `first`)
        of every `pattern` layers. Without a window, no layer has one."""
        given = sliding_window_layers(self.hparams, self.block_count, pattern, first=first)
        return given if self.sliding_window(default_window) else [False] * self.block_count

    def kv_source_layers(self) -> Sequence[int]:
        """Return the layer whose keys and values each layer uses."""
        return kv_source_layers(self.hparams, self.block_count, self.sliding_layers(0))

    def latent_shape(self) -> LatentShape:
        """Return the shape of multi-head latent attention."""
        return read_latent_shape(self.hparams)

    def qkv(self, h: Buffer, blk: Block, *, bias: bool = False) -> Sequence[Buffer]:
        """Return queries, keys and values, float32 [token][head][value], from three matrices or from a fused one. With
        `bias`, each matrix must have one."""
        if bias:
            self._has_bias.update(attn_q=True, attn_k=True, attn_v=True, attn_qkv=True)
        heads = blk.heads
        q, k, v = heads.count * heads.key, heads.count_kv * heads.key, heads.count_kv * heads.value
        if self.tensors.has(f"{blk}attn_qkv.weight"):
            return self.slices(h, f"{blk}attn_qkv", q, k, v)
        return [
            self.matmul(h, f"{blk}attn_q", q, barrier=False),
            self.matmul(h, f"{blk}attn_k", k, barrier=False),
            self.matmul(h, f"{blk}attn_v", v),
        ]

    def attend(
        self,
        blk: Block,
        q: Buffer,
        k: Buffer | None = None,
        v: Buffer | None = None,
        *,
        kv_source: int | None = None,
        rope: Rope | None,
        norm: str = "none",
        window: int = 0,
        chunked: bool = False,
        scale: float | None = None,
        cap: float = 0.0,
        sinks: bool = False,
    ) -> Buffer:
        """Add causal attention over the KV cache (bidirectional in encoders) and return the input of attn_output.

        Tokens attend to the last `window` positions (0: all), or, if `chunked`, to those of their own chunk of `window`
        positions. `kv_source` is the layer whose keys and values are used instead of k and v. Without v, the values are
        the last dimensions of the keys.

        `norm` is the norm of the heads of queries and keys: RMSNorm "before_rope" or "after_rope", "unweighted" RMSNorm
        after RoPE, LayerNorm with weights "per_head", or "none". Scores are multiplied by `scale` (default: key
        size^-1/2) and soft-capped at `cap` unless that is 0. With `sinks`, each head has a learned score that takes
        part in the softmax and has no value.
        """
        heads, norms = blk.heads, NO_NORMS
        if rope and rope.n_rot > heads.key:
            raise self.hparams.error("rope.dimension_count", f"is {rope.n_rot}; {blk}attn_q has heads of {heads.key}")
        expected = ("head_count", q, heads.count * heads.key), ("head_count_kv", k, heads.count_kv * heads.key)
        for key, x, n in (*expected, ("head_count_kv", v, heads.count_kv * heads.value)):
            if x is not None and x.n != n:
                raise self.hparams.error(
                    f"attention.{key}", f"makes {n} values of a token in {blk}attn; there are {x.n}"
                )
        if norm == "per_head":
            assert k is not None
            self._norm_heads(q, f"{blk}attn_q_norm", heads.count, heads.key)
            self._norm_heads(k, f"{blk}attn_k_norm", heads.count_kv, heads.key)
        elif norm == "unweighted":
            norms = HeadNorms(norm)
        elif norm != "none":
            weights = [self.tensors.vector(f"{blk}attn_{name}_norm.weight", heads.key) for name in ("qk" if k else "q")]
            norms = HeadNorms(norm, *weights)
        self.has_cross_layer_inputs = self.has_cross_layer_inputs or kv_source is not None
        if kv_source is not None and replace(self.heads[kv_source], count=heads.count) != heads:
            what = f"layer {blk.number} has other heads than layer {kv_source}, whose keys it uses"
            raise self.hparams.error("attention.head_count_kv", what)
        return self.attention.attend(
            str(blk), q, k, v, heads, kv_source=None if kv_source is None else f"blk.{kv_source}.", rope=rope,
            norms=norms, window=window,
            chunked=chunked, scale=scale or heads.key**-0.5, cap=cap,
            attn_sinks=self.tensors.vector(f"{blk}attn_sinks.weight", heads.count) if sinks else None,
            k_bias=self._key_bias(blk) if k is not None and norm == "none" else None,
        )  # fmt: skip

    def _key_bias(self, blk: Block) -> Tensor | None:
        """Return the bias that `qkv` adds to the keys of a layer, if any."""
        heads = blk.heads
        q, k, v = heads.count * heads.key, heads.count_kv * heads.key, heads.count_kv * heads.value
        if self.tensors.has(f"{blk}attn_qkv.weight"):
            bias = self.bias(f"{blk}attn_qkv", q + k + v)
            return None if bias is None else row_slice(bias, q, k)
        return self.bias(f"{blk}attn_k", k)

    def _norm_heads(self, x: Buffer, name: str, heads: int, size: int) -> None:
        """Apply LayerNorm to each head, with weights per head."""
        weight = self.tensors.floats(f"{name}.weight", heads, size)
        self.graph.op(name, NORM_HEADS, x.rows, weight=weight, heads=heads, size=size, eps=self.eps, x=x)
