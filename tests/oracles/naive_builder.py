"""The builder of the oracle: it computes the operations of architecture files at once, in numpy, for all tokens."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np
from naive_math import (
    ACTIVATIONS,
    Floats,
    Positions,
    gated_activation,
    layer_norm,
    match_rms,
    plain_frequencies,
    relu,
    rms_norm,
    rotate,
    sigmoid,
    soft_cap,
    softmax,
    sparse_mixer_weight,
    split_heads,
    temperature_at,
    visible,
    within_window,
    yarn_frequencies,
)
from naive_media import NaiveMedia
from naive_model import Model

from localinfer.graph.builder import (
    AltUpStreams,
    BlockFunction,
    Builder,
    CrossLayerOperations,
    EmbeddingOperations,
    ExpertOperations,
    HeadInputs,
    HeadOperations,
    OutputOperations,
    RecurrentOperations,
)
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.properties.model_properties import Block, ModelProperties
from localinfer.graph.properties.recurrence import Recurrence, read_wkv_head_size
from localinfer.graph.properties.rope import AttentionTemperature, Rope
from localinfer.graph.properties.router import Router
from localinfer.runtime.compiled_graph import BIDIRECTIONAL


class NumpyBuilder(Builder[Floats]):
    """The operations on numpy arrays, (n_tokens, n). `types` are the segments of a text pair that tokens belong to."""

    def __init__(self, model: Model, tokens: Sequence[int], types: Sequence[int] = ()) -> None:
        super().__init__(ModelProperties(model.file, Hyperparameters(model.file)))
        self.model, self.n_tokens, self.positions = model, len(tokens), np.arange(len(tokens))
        self.media = NaiveMedia(tokens, model.media)
        self.token_ids = np.maximum(np.asarray(tokens), 0)
        self.embeddings = NumpyEmbeddings(self, np.asarray(types or [0] * len(tokens)))
        self.per_head = NumpyHeads(model)
        self.output = NumpyOutput(self)
        self.causal = self.hparams.flag("attention.causal", self.hparams.architecture not in BIDIRECTIONAL)
        self.kv_cache: dict[int, tuple[Floats, Floats]] = {}  # keys and values of each layer
        self.residual: Floats | None = None  # None: there are several residual streams
        self.points: dict[str, Floats] = {}  # a copy of the activations at each point

    @cached_property
    def recurrent(self) -> "NumpyRecurrence":
        return NumpyRecurrence(self)

    @cached_property
    def experts(self) -> "NumpyExperts":
        return NumpyExperts(self)

    @cached_property
    def cross_layer(self) -> "NumpyCrossLayer":
        return NumpyCrossLayer(self)

    def blocks(self) -> Iterator[Block]:
        for number, heads in enumerate(self.attention_heads):
            blk, x = Block(number, heads), self.residual
            if x is not None:
                self.point(x, f"{blk}resid_pre")
            yield blk
            if x is not None:
                x += self.model.directions.get(number, 0.0)
                self.point(x, f"{blk}resid_post")

    def point(self, x: Floats, name: str) -> None:
        if name in self.model.patches:
            x[:] = self.model.patches[name](x.copy())
        self.points.setdefault(name, x.copy())

    def asks_for(self, name: str) -> bool:
        return True

    # --- rows ---

    def norm(self, x: Floats, name: str, *, in_place: bool = False) -> Floats:
        if in_place:
            x[:] = self.norm(x, name)
            return x
        if self.uses_layer_norm:
            y = layer_norm(x, self.model[name], self.eps) + self.model.bias(name)
        else:
            y = rms_norm(x, self.model[name], self.eps)
        self.point(y, name)
        return y

    def norm_groups(
        self, x: Floats, size: int, tensor: str = "", *, per_group_weight: bool = False, eps: float | None = None,
        out: Floats | None = None,
    ) -> Floats:  # fmt: skip
        groups = x.reshape(len(x), -1, size)
        weight = self.model.vector(tensor) if tensor else np.ones(size, x.dtype)
        weight = weight.reshape(-1, size) if per_group_weight else weight
        y = rms_norm(groups, weight, eps or self.eps).reshape(x.shape)
        if out is not None:
            out[:] = y
        return y

    def add_norm(self, x: Floats, branch: Floats, name: str) -> None:
        x += self.norm(branch, name)

    def add(self, x: Floats, branch: Floats, factor: float = 1.0) -> None:
        x += factor * branch

    def add_vector(self, x: Floats, tensor: str) -> Floats:
        return x + self.model.vector(tensor)

    def soft_cap(self, x: Floats, factor: float, cap: float) -> None:
        x[:] = soft_cap(factor * x, cap)

    def gate(
        self, gate: Floats, up: Floats | None, activation: str = "none", *, first: int = 0,
        std_multiplier: float = -math.inf,
    ) -> Floats:  # fmt: skip
        if math.isfinite(std_multiplier):
            mean, deviation = gate.mean(axis=1, keepdims=True), gate.std(axis=1, keepdims=True)
            gate = relu(gate - mean - std_multiplier * deviation)
        if up is None:
            return ACTIVATIONS[activation](gate)
        return gated_activation(activation, gate, up[:, first : first + gate.shape[1]])

    # --- matrices ---

    def matmul(self, x: Floats, name: str, n_out: int, *, add_to: Floats | None = None, barrier: bool = True) -> Floats:
        y = self.product(x, name)
        assert y.shape[1] == n_out
        self.point(y, name)
        if add_to is None:
            return y
        add_to += y
        return add_to

    def slices(self, x: Floats, name: str, *n_outs: int) -> Sequence[Floats]:
        return np.split(self.product(x, name), np.cumsum(n_outs)[:-1], axis=1)

    def product(self, x: Floats, name: str) -> Floats:
        return self.model.matmul(name, x) + self.model.bias(name)

    # --- attention ---

    def rope(self, pairs: str, *, truncate: bool = True, amplified: bool = True, with_temperature: bool = True) -> Rope:
        keys = self.hparams
        n = keys.count("rope.dimension_count", self.properties.key_length(sliding=False))
        base, kind = keys.positive("rope.freq_base", 10_000.0), keys.text("rope.scaling.type", "none")
        scaling_factor, trained = keys.positive("rope.scaling.factor", 1.0), keys.count("context_length")
        original = keys.count("rope.scaling.original_context_length", trained)
        frequencies, amplitude = plain_frequencies(base, n), keys.positive("rope.scaling.attn_factor", 1.0)
        if kind == "linear":
            frequencies = frequencies / scaling_factor
        if kind == "yarn":
            fast, slow = (keys.positive(f"rope.scaling.yarn_beta_{end}", n) for end, n in (("fast", 32.0), ("slow", 1)))
            frequencies = yarn_frequencies(frequencies, base, scaling_factor, original, fast, slow, truncate)
            multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
            if amplified or not multiplier:
                amplitude *= (0.1 * math.log(scaling_factor) + 1) / (0.1 * multiplier * math.log(scaling_factor) + 1)
        is_long = (self.model.ctx_size or trained) > original
        for name in ("rope_freqs", "rope_factors_long" if is_long else "rope_factors_short"):
            frequencies = frequencies / self.model.factors.get(name, 1.0)
        temperature = AttentionTemperature(
            keys.number("attention.temperature_scale", 0.0), keys.count("attention.temperature_length", original)
        )
        return Rope(pairs, frequencies, amplitude, temperature if with_temperature else None)

    def attend(
        self, blk: Block, q: Floats, k: Floats | None, v: Floats | None, spec: AttentionSpec, *,
        kv_source: int | None = None,
    ) -> Floats:  # fmt: skip
        """Attend to the position itself and those before it (`window` in all, if not 0, or those of its chunk); in an
        encoder, to all positions, or to half a window on each side.

        With context shift (`n_ctx` is set), layers without a window have one of n_ctx - sinks and also attend to the
        first `sinks` positions, as if from the end of the context.
        """
        model, position, rope, window = self.model, self.positions, spec.rope, spec.window
        rotary = self.media.coordinates
        factor, q = model.scale or spec.scale or blk.heads.key**-0.5, split_heads(q, blk.heads.count)

        def normed_and_rotated(x: Floats, name: str, at: Positions) -> Floats:
            if spec.head_norm == "before_rope":
                x = rms_norm(x, model[f"{blk}attn_{name}_norm"], self.eps)
            if spec.head_norm == "per_head":
                x = layer_norm(x, model[f"{blk}attn_{name}_norm"][:, None], self.eps)
            x = x if rope is None else rotate(x, at, rope)
            if rope is not None and rope.temperature and name == "q":
                x = x * temperature_at(rope.temperature, at[:, 0])[:, None]
            if spec.head_norm == "unweighted":
                x = rms_norm(x, np.ones(1), self.eps)
            return rms_norm(x, model[f"{blk}attn_{name}_norm"], self.eps) if spec.head_norm == "after_rope" else x

        if k is not None:
            anchors = self.anchors(blk, rope, 0 if window else model.sinks) if spec.head_norm == "none" else 0.0
            k = normed_and_rotated(split_heads(k, blk.heads.count_kv), "k", rotary)
            k = model.store_in_cache(self.point_of_heads(k, f"{blk}attn_k_rope"), anchors)
            v = k[..., -blk.heads.value :] if v is None else model.store_in_cache(split_heads(v, blk.heads.count_kv))
            self.kv_cache[blk.number] = k, v
        k, v = self.kv_cache[blk.number if kv_source is None else kv_source]
        group = blk.heads.group  # query heads per KV head
        k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
        rotated = self.point_of_heads(normed_and_rotated(q, "q", rotary), f"{blk}attn_q_rope")
        scores = rotated @ k.transpose(0, 2, 1)  # (n_head, n_tokens, n_tokens)
        if window == 0 and model.n_ctx:
            window, near = model.n_ctx - model.sinks, np.minimum(rotary, model.n_ctx - 1)
            scores[..., : model.sinks] = normed_and_rotated(q, "q", near) @ k[:, : model.sinks].transpose(0, 2, 1)
            mask = visible(position, window, model.sinks)
        else:
            mask = visible(position, window) if self.causal else within_window(position, window)
        if not spec.causal_media:
            mask |= self.media.later_rows()
        if spec.chunked:
            mask &= position[:, None] // window == position[None, :] // window
        scores = np.where(mask, soft_cap(factor * scores, spec.cap), -np.inf)
        if spec.sinks:  # an extra column whose value is 0
            sink_scores = np.repeat(model[f"{blk}attn_sinks"][:, None], len(position), axis=1)[..., None]
            scores, v = np.concatenate([scores, sink_scores], axis=2), np.pad(v, ((0, 0), (0, 1), (0, 0)))
        weights = softmax(scores)
        self.points[f"{blk}attn_weights"] = weights[..., : len(position)]
        y = (weights @ v).transpose(1, 0, 2).reshape(len(position), -1)
        self.point(y, f"{blk}attn_heads")
        return y

    def point_of_heads(self, heads: Floats, name: str) -> Floats:
        """Name a point, and return its activations, (heads, n_tokens, size)."""
        x = heads.transpose(1, 0, 2).reshape(self.n_tokens, -1).copy()
        self.point(x, name)
        return split_heads(x, len(heads))

    def anchors(self, blk: Block, rope: Rope | None, sinks: int) -> Floats | float:
        """Return the mean of the rotated key bias over each position's page of 64 entries: (heads, n_tokens,
        head_size)."""
        bias = self.model.bias(f"{blk}attn_k")
        if isinstance(bias, float) or not self.model.anchored:
            return 0.0
        begin = np.where(self.positions < sinks, 0, sinks)
        first = self.positions - (self.positions - begin) % 64
        heads = split_heads(np.tile(bias, (len(first), 1)), blk.heads.count_kv)
        near = (heads if rope is None else rotate(heads, first + entry, rope) for entry in range(64))
        return sum(near, np.zeros_like(heads)) / 64


class NumpyOutput(OutputOperations[Floats]):
    """What follows the last layer."""

    def __init__(self, g: NumpyBuilder) -> None:
        self.g, self.model = g, g.model
        self.finish: Callable[[Floats], Floats] = lambda logits: logits
        self.mtp_states: Floats = np.zeros((0, 0))  # hidden states of the MTP head

    def final_states(self, x: Floats, norm: str = "") -> Floats:
        self.final = self.g.norm(x, norm) if norm else x
        if norm and norm != "output_norm":
            self.g.point(self.final, "output_norm")
        return self.final

    def logits(self, x: Floats, *, scale: float = 1.0, cap: float = 0.0, norm: str = "output_norm") -> None:
        self.final_states(x, norm)
        self.finish = lambda logits: soft_cap(scale * logits, cap)

    def add_mtp_head(self, x: Floats, apply_block: BlockFunction[Floats], norm: str = "output_norm") -> None:
        """Compute the states of the MTP head: row t depends on tokens 0 to t and on the hidden states before t."""
        blk = Block(self.g.block_count, next(heads for heads in reversed(self.g.attention_heads) if heads.count_kv))
        own = f"{blk}nextn."
        if not self.model.has(f"{own}eh_proj.weight"):
            return
        before = np.concatenate([np.zeros((1, x.shape[1]), x.dtype), self.g.norm(x, norm)[:-1]])
        name = f"{own}embed_tokens" if self.model.has(f"{own}embed_tokens.weight") else "token_embd"
        embedded = self.model.rows(name, self.g.token_ids).astype(x.dtype)
        both = np.concatenate([self.g.norm(embedded, f"{own}enorm"), self.g.norm(before, f"{own}hnorm")], axis=1)
        y = self.model.matmul(f"{own}eh_proj", both)
        apply_block(blk, y)
        own_norm = f"{own}shared_head_norm"
        self.mtp_states = self.g.norm(y, own_norm if self.model.has(f"{own_norm}.weight") else norm)


class NumpyEmbeddings(EmbeddingOperations[Floats]):
    """Rows of embedding matrices."""

    def __init__(self, g: NumpyBuilder, types: Positions) -> None:
        self.g, self.model, self.types = g, g.model, types

    def tokens(self, factor: float = 1.0) -> Floats:
        rows: Floats = self.model.rows("token_embd", self.g.token_ids).astype(self.model.dtype)
        x = (rows + self.model.changed_embeddings(self.g.token_ids)) * rows.dtype.type(np.float32(factor))
        x[self.g.media.rows] = self.g.media.slice(x.shape[1], 0) if self.g.media.rows else 0
        self.g.point(x, "token_embd")
        self.g.residual = x
        return x

    def add_deepstack(self, x: Floats, layer: int) -> None:
        if self.g.media.rows:
            x[self.g.media.rows] += self.g.media.slice(x.shape[1], 1 + layer)

    def add_positions(self, x: Floats) -> None:
        x += self.model["position_embd"][self.g.positions]

    def add_token_types(self, x: Floats) -> None:
        x += self.model["token_types"][self.types]

    def per_layer(self, x: Floats, size: int) -> Floats:
        projected = self.model.matmul("per_layer_model_proj", x / math.sqrt(x.shape[1]))
        rows = self.model.rows("per_layer_token_embd", self.g.token_ids).astype(self.model.dtype)
        normed = self.g.norm_groups(projected, size, "per_layer_proj_norm.weight")
        return (rows * math.sqrt(size) + normed) / math.sqrt(2)


class NumpyHeads(HeadOperations[Floats]):
    """Operations on the heads of a row."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def split(self, x: Floats, heads: int, *sizes: int) -> Sequence[Floats]:
        chunks = np.split(x.reshape(len(x), heads, -1), np.cumsum(sizes)[:-1], axis=2)
        return [chunk.reshape(len(x), -1) for chunk in chunks]

    def split_halves(self, x: Floats, heads: int) -> tuple[Floats, Floats]:
        chunks = x.reshape(len(x), heads, 2, -1)
        return chunks[:, :, 0].reshape(len(x), -1), chunks[:, :, 1].reshape(len(x), -1)

    def join(self, heads: int, *chunks: Floats) -> Floats:
        return np.concatenate([chunk.reshape(len(chunk), heads, -1) for chunk in chunks], axis=2).reshape(
            len(chunks[0]), -1
        )

    def matmul(self, x: Floats, name: str, heads: int, n_out: int) -> Floats:
        chunks = (self.model.expert(name, head, chunk) for head, chunk in enumerate(split_heads(x, heads)))
        return np.stack(list(chunks), axis=1).reshape(len(x), heads * n_out)


class NumpyRecurrence(RecurrentOperations[Floats]):
    """Operations with a recurrent state, computed token by token as in the papers."""

    def __init__(self, g: NumpyBuilder) -> None:
        self.g, self.model = g, g.model

    def convolve(self, x: Floats, name: str, width: int, activation: str = "none") -> Floats:
        before = np.concatenate([np.zeros((width - 1, x.shape[1]), x.dtype), x])
        ages = (before[age : age + len(x)] * self.model[name][:, age] for age in range(width))
        y = ACTIVATIONS[activation](sum(ages) + self.model.bias(name))
        self.g.point(y, name)
        return y

    def recur(self, blk: Block, x: Floats, step: Floats, rate: Floats | None, shape: Recurrence) -> Floats:
        delta, k_n, v_n = shape.rule == "delta", shape.groups * shape.key, shape.heads * shape.value
        first, k, last = np.split(x, [k_n, 2 * k_n] if delta else [v_n, v_n + k_n], axis=1)
        q, v = (first, last) if delta else (last, first)
        q, k = (each.reshape(len(x), shape.groups, shape.key) for each in (q, k))
        repeats = shape.heads // shape.groups // shape.heads_per_key
        q, k = (np.tile(np.repeat(each, shape.heads_per_key, axis=1), (1, repeats, 1)) for each in (q, k))
        v = v.reshape(len(x), shape.heads, shape.value)
        tensors = {name: self.model.numbers(f"{blk}{name}").ravel() for name in ("ssm_a", "ssm_dt.bias")}
        dt = np.log1p(np.exp(step + tensors["ssm_dt.bias"]))
        decay, states = np.exp(tensors["ssm_a"] * dt), np.zeros((shape.heads, shape.key, shape.value), x.dtype)
        if delta:
            q, k = (each / np.sqrt((each * each).sum(axis=-1, keepdims=True) + 1e-6) for each in (q, k))
            q = q * shape.key**-0.5
        y = np.zeros_like(v)
        for t in range(len(x)):
            states *= decay[t][:, None, None]
            if rate is not None:
                learned = sigmoid(rate[t])[:, None] * (v[t] - np.einsum("hk,hkv->hv", k[t], states))
            else:
                learned = dt[t][:, None] * v[t]
            states += np.einsum("hk,hv->hkv", k[t], learned)
            y[t] = np.einsum("hk,hkv->hv", q[t], states)
        if not delta:
            y += self.model.numbers(f"{blk}ssm_d").reshape(-1, 1) * v
        y = y.reshape(len(x), -1)
        self.g.point(y, f"{blk}ssm_heads")
        return y

    def selective_scan(self, blk: Block, x: Floats, step: Floats, b: Floats, c: Floats) -> Floats:
        a, dt = self.model.numbers(f"{blk}ssm_a"), np.log1p(np.exp(step))
        states, y = np.zeros_like(a), self.model.numbers(f"{blk}ssm_d") * x
        for t in range(len(x)):
            states = np.exp(a * dt[t][:, None]) * states + np.outer(dt[t] * x[t], b[t])
            y[t] += states @ c[t]
        self.g.point(y, f"{blk}ssm_heads")
        return y

    def token_shift(self, x: Floats) -> Floats:
        return np.concatenate([np.zeros_like(x[:1]), x[:-1]])

    def lerp(self, x: Floats, other: Floats, weight: Floats) -> Floats:
        return x + weight * (other - x)

    def lerps(self, x: Floats, other: Floats, name: str, count: int) -> Sequence[Floats]:
        return [self.lerp(x, other, weight) for weight in self.model[name].reshape(count, -1)]

    def time_mix(self, blk: Block, x: HeadInputs[Floats]) -> Floats:
        size = read_wkv_head_size(self.g.hparams, self.g.embedding_length)
        kinds = ("k_k", "k_a", "r_k", "ln")
        k_k, k_a, r_k, weight = (self.model[f"{blk}time_mix_{kind}"].reshape(-1, size) for kind in kinds)
        bias = self.model.bias(f"{blk}time_mix_ln").reshape(-1, size)
        r, w, k, v, a = (np.asarray(each).reshape(self.g.n_tokens, -1, size) for each in (x.r, x.w, x.k, x.v, x.a))
        a, decay = sigmoid(a), np.exp(-np.exp(-0.5) * sigmoid(w))
        removed = k * k_k
        removed = removed / np.maximum(np.sqrt((removed**2).sum(axis=-1, keepdims=True)), 1e-12)
        k = k * (1 + (a - 1) * k_a)
        states, y = np.zeros((k.shape[1], size, size), k.dtype), np.zeros_like(v)
        for t in range(len(k)):
            removed_values = np.einsum("hk,hkv->hv", removed[t], states)
            states *= decay[t][:, :, None]
            states += np.einsum("hk,hv->hkv", k[t], v[t]) - np.einsum("hk,hv->hkv", removed[t] * a[t], removed_values)
            y[t] = np.einsum("hk,hkv->hv", r[t], states)
        y = layer_norm(y, weight, size * self.g.eps) + bias + (r * k * r_k).sum(axis=-1, keepdims=True) * v
        y = y.reshape(len(y), -1)
        self.g.point(y, f"{blk}time_mix_heads")
        return y


class NumpyExperts(ExpertOperations[Floats]):
    """A mixture of experts."""

    def __init__(self, g: NumpyBuilder) -> None:
        self.g, self.model = g, g.model

    def apply(
        self, h: Floats, blk: Block, router: Router, activation: str, *, gated: bool = True,
        router_input: Floats | None = None,
    ) -> Floats:  # fmt: skip
        routed = h if router_input is None else router_input
        scores, chosen = self.g.matmul(routed, f"{blk}ffn_gate_inp", router.count), np.zeros_like(h)
        points = {name: np.zeros((len(h), router.used)) for name in ("ffn_expert_ids", "ffn_expert_weights")}
        probabilities = {"softmax": softmax, "sigmoid": sigmoid}.get(router.gating, np.asarray)(scores)
        bias = np.ravel(self.model.bias(f"{blk}exp_probs_b"))
        for token, p in enumerate(probabilities):
            by_group = (p + bias).reshape(router.groups, -1)
            sums = np.sort(by_group, axis=1)[:, -router.best_per_group :].sum(axis=1)
            excluded = np.argsort(-sums, kind="stable")[router.groups_used :]
            by_group[excluded] = -np.inf
            ids = np.argsort(-by_group.ravel(), kind="stable")[: router.used]
            weights = softmax(p[ids]) if router.gating == "softmax_of_chosen" else p[ids]
            if router.gating == "sparse_mixer":
                weights = np.array([sparse_mixer_weight(p, [*ids[:rank]], id) for rank, id in enumerate(ids)])
            weights = router.scale * weights / (weights.sum() if router.normed else 1)
            points["ffn_expert_ids"][token], points["ffn_expert_weights"][token] = ids, weights
            for id, weight in zip(ids, weights, strict=True):
                input_factor, output_factor = (weight, 1.0) if router.weighs_inputs else (1.0, weight)
                f = self.hidden(input_factor * h[token : token + 1], blk, id, activation, gated=gated)
                chosen[token] += output_factor * self.model.expert(f"{blk}ffn_down_exps", id, f)[0]
        self.g.points |= {f"{blk}{name}": values for name, values in points.items()}
        self.g.point(chosen, f"{blk}ffn_experts")
        return chosen

    def sigmoid_gate(self, y: Floats, h: Floats, name: str) -> None:
        y *= sigmoid(h @ self.model[name].reshape(-1, 1))

    def hidden(self, x: Floats, blk: Block, id: int, activation: str, *, gated: bool) -> Floats:
        """Return the input of an expert's last matrix."""
        if not gated:
            return ACTIVATIONS[activation](self.model.expert(f"{blk}ffn_up_exps", id, x))
        if self.model.has(f"{blk}ffn_gate_up_exps.weight"):
            gate, up = np.split(self.model.expert(f"{blk}ffn_gate_up_exps", id, x), 2, axis=1)
        else:
            gate, up = (self.model.expert(f"{blk}ffn_{name}_exps", id, x) for name in ("gate", "up"))
        return gated_activation(activation, gate, up)


class NumpyCrossLayer(CrossLayerOperations[Floats]):
    """Activations that several layers use."""

    def __init__(self, g: NumpyBuilder) -> None:
        self.g = g

    def buffer(self, n: int) -> Floats:
        return np.zeros((self.g.n_tokens, n), self.g.model.dtype)

    def copy(self, x: Floats, to: Floats) -> None:
        to[:] = x

    def altup(self, x: Floats, count: int) -> AltUpStreams[Floats]:
        self.g.residual = None
        return NumpyAltUp(self.g, x, count)


class NumpyAltUp(AltUpStreams[Floats]):
    """Several residual streams, (tokens, streams, n)."""

    def __init__(self, g: NumpyBuilder, x: Floats, count: int) -> None:
        self.g, self.model, self.count = g, g.model, count
        self.streams = np.stack([x, *(match_rms(x @ matrix.T, x) for matrix in self.model["altup_proj"])], axis=1)
        self.predicted = self.streams

    def predict(self, blk: Block) -> Floats:
        weights = self.modalities(blk, self.streams[:, 0]) @ self.model[f"{blk}altup_predict_coef"].T
        self.predicted = self.streams + weights.reshape(-1, self.count, self.count) @ self.streams
        return self.predicted[:, 0].copy()

    def correct(self, blk: Block, y: Floats) -> Floats:
        weights = 1 + self.modalities(blk, y) @ self.model[f"{blk}altup_correct_coef"].T
        self.streams = self.predicted + weights[:, :, None] * (y - self.predicted[:, 0])[:, None]
        return self.streams[:, 0] * self.model[f"{blk}altup_correct_scale"]

    def add_to_inactive(self, branch: Floats) -> None:
        self.streams[:, 1:] += branch[:, None]

    def merge(self) -> Floats:
        first, matrices = self.streams[:, 0], self.model["altup_unembd_proj"]
        others = (match_rms(self.streams[:, 1 + number] @ m.T, first) for number, m in enumerate(matrices))
        return sum(others, first) / self.count

    def modalities(self, blk: Block, x: Floats) -> Floats:
        """Return the router's coefficients in [-1, 1], one per stream."""
        normed = self.g.norm(x, f"{blk}altup_router_norm")
        return np.tanh(self.g.matmul(normed, f"{blk}altup_router", self.count) / x.shape[1])
