"""The oracle: the operations of the graph builder in plain numpy, written for readability.

An architecture's `build` function is called with a `NumpyBuilder` instead of a `GraphBuilder`. Each operation is
computed immediately, for all tokens. Every weight is dequantized to `dtype` (float64 by default), which is also the
precision of all operations; nothing is rounded, cached, tiled or fused. It uses no kernel of `quant` and no engine:
files are opened by `localinfer.gguf.gguf`, blocks are decoded by the `gguf` package.

    model = naive.Model(open_gguf(path))
    logits = naive.forward(model, tokens)           # (n_tokens, n_vocab)
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
from numpy.typing import DTypeLike, NDArray

from localinfer import architectures
from localinfer.gguf.reader import GGUF
from localinfer.graph.experts import Router, read_router
from localinfer.graph.graph_builder_base import Block
from localinfer.graph.heads import Heads, read_heads
from localinfer.graph.hyperparameters import Hyperparameters, kv_source_layers, sliding_window_layers
from localinfer.graph.latent_attention import LatentShape, read_latent_shape
from localinfer.graph.recurrence import Recurrence, read_recurrence
from localinfer.graph.time_mix import HeadInputs, read_head_size
from localinfer.runtime.compiled_graph import BIDIRECTIONAL

Floats = NDArray[np.floating[Any]]  # of the model's dtype
Positions = NDArray[np.integer[Any]]


class Model:
    """A file's weights as plain matrices, decoded at first use and then kept, and the settings of tests."""

    def __init__(self, file: GGUF, dtype: DTypeLike = np.float64) -> None:
        self.file, self.dtype = file, np.dtype(dtype)
        self.weights: dict[str, Floats] = {}
        self.n_ctx = self.sinks = 0  # if set, the context shift policy: see attend
        self.ctx_size = 0  # the context length for RoPE extension; 0: the trained one
        self.factors = {name: self[name] for name in ROPE_FACTORS if self.has(f"{name}.weight")}
        self.scale: float | None = None  # overrides the architecture's scale of the scores
        self.anchored = False  # whether keys are cached relative to anchors

    def has(self, name: str) -> bool:
        return name in self.file.tensors

    def __getitem__(self, name: str) -> Floats:
        """Return the tensor `<name>.weight`, rows first: a matrix is (n_out, n_in)."""
        if name not in self.weights:
            self.weights[name] = self.rows(name).astype(self.dtype)
        return self.weights[name]

    def numbers(self, name: str) -> Floats:
        """Return a float32 tensor whose name has no suffix."""
        tensor = self.file.tensors[name]
        return tensor.data.view(np.float32).astype(self.dtype).reshape(tensor.shape)

    def bias(self, name: str) -> Floats | float:
        """Return the tensor `<name>.bias`, (n_out,), or 0."""
        if not self.has(f"{name}.bias"):
            return 0.0
        tensor = self.file.tensors[f"{name}.bias"]
        return tensor.data.view(np.float32).astype(self.dtype).reshape(tensor.shape)

    def rows(self, name: str, rows: slice | NDArray[np.int64] = slice(None)) -> NDArray[np.float32]:
        """Return some rows of a tensor, decoded and not kept."""
        tensor = self.file.tensors[name if self.has(name) else f"{name}.weight"]
        bytes_of_rows = tensor.data.reshape(*tensor.shape[:-1], -1)[rows]
        return gguf.dequantize(bytes_of_rows, gguf.GGMLQuantizationType(tensor.type))

    # Subclasses override these methods to round.

    def matmul(self, name: str, x: Floats) -> Floats:
        """Multiply (n, n_in) -> (n, n_out)."""
        return x @ self[name].T * self.scale_of(name)

    def scale_of(self, name: str) -> Floats | float:
        """Return the scale of the products of a matrix."""
        given = self.has(f"{name}.scale") and self.file.tensors[f"{name}.scale"].shape == (1,)
        return self.numbers(f"{name}.scale") if given else 1.0

    def expert(self, name: str, number: int, x: Floats) -> Floats:
        """Multiply with one of many matrices, and add its bias: (n, n_in) -> (n, n_out)."""
        self.weights[f"{name} {number}"], bias = self[name][number], self.bias(name)
        factor = self.numbers(f"{name}.scale")[number] if self.has(f"{name}.scale") else 1.0
        return self.matmul(f"{name} {number}", x) * factor + (bias if isinstance(bias, float) else bias[number])

    def store_in_cache(self, kv: Floats, anchors: Floats | float = 0.0) -> Floats:
        """Return keys or values (heads, n_tokens, head_size) as the cache would return them; `anchors` are those of the
        keys."""
        return kv


ROPE_FACTORS = ("rope_freqs", "rope_factors_short", "rope_factors_long")


def forward(model: Model, tokens: Sequence[int]) -> Floats:
    """Return the logits after each of `tokens`, which are at positions 0, 1, ...: (n_tokens, n_vocab)."""
    builder = run_builder(model, tokens)
    return builder.finish(np.concatenate([*output(model, builder.final)], axis=1))


def mtp_logits(model: Model, tokens: Sequence[int]) -> Floats:
    """Return the logits of the MTP head after each of `tokens`, given the token and the hidden states before it:
    (n_tokens, n_vocab)."""
    builder = run_builder(model, tokens)
    own, states = f"blk.{builder.block_count}.nextn.shared_head_head", builder.mtp_states
    return model.matmul(own, states) if model.has(f"{own}.weight") else np.concatenate([*output(model, states)], axis=1)


def final_hidden_states(model: Model, tokens: Sequence[int]) -> Floats:
    """Return the input of the output layer, or the output of an encoder: (n_tokens, n_embd)."""
    return run_builder(model, tokens).final


def run_builder(model: Model, tokens: Sequence[int], types: Sequence[int] = ()) -> "NumpyBuilder":
    """Run the architecture's build function; `types` are the segments of a text pair that tokens belong to."""
    builder = NumpyBuilder(model, tokens, types)
    architectures.find_build_function(model.file)(builder)  # type: ignore[arg-type]
    return builder


def output(model: Model, x: Floats, chunk: int = 16_384) -> Iterator[Floats]:
    """Yield the logits of `chunk` vocabulary entries at a time: (n_tokens, chunk), before scaling and soft-capping."""
    name = "output" if model.has("output.weight") else "token_embd"
    n_vocab, bias = model.file.tensors[f"{name}.weight"].shape[0], model.bias(name)
    for start in range(0, n_vocab, chunk):
        model.weights["output chunk"] = model.rows(name, slice(start, start + chunk)).astype(model.dtype)
        own = bias if isinstance(bias, float) else bias[start : start + chunk]
        yield model.matmul("output chunk", x) * model.scale_of(name) + own


@dataclass(frozen=True, eq=False)
class RotaryEmbedding:
    """The pairs of a head that are rotated, their radians per position, and the factors of the rotated values."""

    pairs: str
    frequencies: Floats
    amplitude: float = 1.0
    temperature: Callable[[Positions], Floats] | None = None  # of queries


class NumpyBuilder:
    """The interface of `localinfer.graph.graph_builder.GraphBuilder`, in numpy."""

    def __init__(self, model: Model, tokens: Sequence[int], types: Sequence[int] = ()) -> None:
        self.model, self.tokens = model, np.asarray(tokens)
        self.types = np.asarray(types or [0] * len(tokens))
        self.positions = np.arange(len(self.tokens))
        self.hparams = keys = Hyperparameters(model.file)
        ahead = keys.count("nextn_predict_layers", 0, minimum=0)  # MTP layers
        self.block_count, self.embedding_length = keys.count("block_count") - ahead, keys.count("embedding_length")
        self.heads: Sequence[Heads] = read_heads(keys, self.embedding_length, self.block_count)
        self.uses_layer_norm = keys.has("attention.layer_norm_epsilon") and not keys.has(
            "attention.layer_norm_rms_epsilon"
        )
        self.eps = keys.positive(
            "attention.layer_norm_epsilon" if self.uses_layer_norm else "attention.layer_norm_rms_epsilon"
        )
        self.causal = keys.flag("attention.causal", keys.architecture not in BIDIRECTIONAL)
        self.kv_cache: dict[int, tuple[Floats, Floats]] = {}  # keys and values of each layer
        self.finish: Callable[[Floats], Floats] = lambda logits: logits
        self.mtp_states: Floats = np.zeros((0, 0))  # hidden states of the MTP head

    def blocks(self) -> Iterator[Block]:
        yield from (Block(number, heads) for number, heads in enumerate(self.heads))

    # --- tokens ---

    def embed(self, factor: float = 1.0) -> Floats:
        rows: Floats = self.model.rows("token_embd", self.tokens).astype(self.model.dtype)
        return rows * rows.dtype.type(np.float32(factor))

    def add_positions(self, x: Floats) -> None:
        x += self.model["position_embd"][self.positions]

    def add_types(self, x: Floats) -> None:
        x += self.model["token_types"][self.types]

    def final_states(self, x: Floats, norm: str = "") -> None:
        self.final = self.norm(x, norm) if norm else x

    def per_layer_inputs(self, x: Floats, size: int) -> Floats:
        said = self.model.matmul("per_layer_model_proj", x / math.sqrt(x.shape[1]))
        rows = self.model.rows("per_layer_token_embd", self.tokens).astype(self.model.dtype)
        return (rows * math.sqrt(size) + self.norm_groups(said, size, "per_layer_proj_norm.weight")) / math.sqrt(2)

    def logits(self, x: Floats, *, scale: float = 1.0, cap: float = 0.0, norm: str = "output_norm") -> None:
        self.final_states(x, norm)
        self.finish = lambda logits: soft_cap(scale * logits, cap)

    def add_mtp_head(self, x: Floats, apply_block: Callable[[Block, Floats], None], norm: str = "output_norm") -> None:
        """Compute the states of the MTP head: row t depends on tokens 0 to t and on the hidden states before t."""
        blk = Block(self.block_count, next(heads for heads in reversed(self.heads) if heads.count_kv))
        own = f"{blk}nextn."
        if not self.has(f"{own}eh_proj.weight"):
            return
        before = np.concatenate([np.zeros((1, x.shape[1]), x.dtype), self.norm(x, norm)[:-1]])
        name = f"{own}embed_tokens" if self.has(f"{own}embed_tokens.weight") else "token_embd"
        embedded = self.model.rows(name, self.tokens).astype(x.dtype)
        both = np.concatenate([self.norm(embedded, f"{own}enorm"), self.norm(before, f"{own}hnorm")], axis=1)
        y = self.model.matmul(f"{own}eh_proj", both)
        apply_block(blk, y)
        self.mtp_states = self.norm(y, f"{own}shared_head_norm" if self.has(f"{own}shared_head_norm.weight") else norm)

    # --- rows ---

    def norm(self, x: Floats, name: str, *, in_place: bool = False) -> Floats:
        if in_place:
            x[:] = self.norm(x, name)
            return x
        if self.uses_layer_norm:
            return layer_norm(x, self.model[name], self.eps) + self.model.bias(name)
        return rms_norm(x, self.model[name], self.eps)

    def norm_groups(
        self, x: Floats, size: int, tensor: str = "", *, per_group_weight: bool = False, out: Floats | None = None
    ) -> Floats:
        parts, weight = x.reshape(len(x), -1, size), self.vector(tensor) if tensor else np.ones(size, x.dtype)
        y = rms_norm(parts, weight.reshape(-1, size) if per_group_weight else weight, self.eps).reshape(x.shape)
        if out is not None:
            out[:] = y
        return y

    def vector(self, tensor: str) -> Floats:
        return self.model.file.tensors[tensor].data.view(np.float32).astype(self.model.dtype)

    def add_norm(self, x: Floats, branch: Floats, name: str) -> None:
        x += self.norm(branch, name)

    def add(self, x: Floats, branch: Floats, factor: float = 1.0) -> None:
        x += factor * branch

    def add_vector(self, x: Floats, tensor: str) -> Floats:
        return x + self.vector(tensor)

    def persistent_buffer(self, n: int) -> Floats:
        return np.zeros((len(self.tokens), n), self.model.dtype)

    def copy(self, x: Floats, to: Floats) -> None:
        to[:] = x

    def scalar(self, tensor: str) -> float:
        return float(self.vector(tensor)[0])

    def scale(self, x: Floats, factor: float) -> None:
        x *= factor

    # --- matrices ---

    def matmul(self, x: Floats, name: str, n_out: int, *, add_to: Floats | None = None) -> Floats:
        y = self.model.matmul(name, x) + self.model.bias(name)
        assert y.shape[1] == n_out
        if add_to is None:
            return y
        add_to += y
        return add_to

    def slices(self, x: Floats, name: str, *n_outs: int) -> Sequence[Floats]:
        return np.split(self.matmul(x, name, sum(n_outs)), np.cumsum(n_outs)[:-1], axis=1)

    def feed_forward(
        self, h: Floats, blk: Block, activation: str, *, gated: bool = True, std_multiplier: float = -math.inf
    ) -> Floats:
        lengths = self.hparams.counts("feed_forward_length", self.block_count, minimum=0)
        n = lengths[min(blk.number, self.block_count - 1)]
        if not gated:
            return ACTIVATIONS[activation](self.matmul(h, f"{blk}ffn_up", n))
        if len(self.model[f"{blk}ffn_up"]) == 2 * n:
            gate, up = self.slices(h, f"{blk}ffn_up", n, n)
        else:
            gate, up = (self.matmul(h, f"{blk}ffn_{name}", n) for name in ("gate", "up"))
        if math.isfinite(std_multiplier):
            mean, deviation = gate.mean(axis=1, keepdims=True), gate.std(axis=1, keepdims=True)
            gate = relu(gate - mean - std_multiplier * deviation)
        return gated_activation(activation, gate, up)

    def gate(self, gate: Floats, up: Floats | None, activation: str = "none", *, first: int = 0) -> Floats:
        return ACTIVATIONS[activation](gate) * (1.0 if up is None else up[:, first : first + gate.shape[1]])

    # --- heads ---

    def split(self, x: Floats, heads: int, *sizes: int) -> Sequence[Floats]:
        parts = np.split(x.reshape(len(x), heads, -1), np.cumsum(sizes)[:-1], axis=2)
        return [part.reshape(len(x), -1) for part in parts]

    def join(self, heads: int, *parts: Floats) -> Floats:
        return np.concatenate([part.reshape(len(part), heads, -1) for part in parts], axis=2).reshape(len(parts[0]), -1)

    def head_matmul(self, x: Floats, name: str, heads: int, n_out: int) -> Floats:
        parts = (self.model.expert(name, head, part) for head, part in enumerate(split(x, heads)))
        return np.stack(list(parts), axis=1).reshape(len(x), heads * n_out)

    def altup(self, x: Floats, count: int) -> "AltUp":
        return AltUp(self, x, count)

    # --- recurrence ---

    def convolve(self, x: Floats, name: str, width: int, activation: str = "none") -> Floats:
        before = np.concatenate([np.zeros((width - 1, x.shape[1]), x.dtype), x])
        ages = (before[age : age + len(x)] * self.model[name][:, age] for age in range(width))
        return ACTIVATIONS[activation](sum(ages) + self.model.bias(name))

    def recurrence(self, rule: str, *, repeat_interleave: bool = False) -> Recurrence:
        return read_recurrence(self.hparams, rule, repeat_interleave=repeat_interleave)

    def recur(self, blk: Block, x: Floats, step: Floats, rate: Floats | None, shape: Recurrence) -> Floats:
        """Compute token by token, as in the papers: (n_tokens, heads * value)."""
        delta, k_n, v_n = shape.rule == "delta", shape.groups * shape.key, shape.heads * shape.value
        first, k, last = np.split(x, [k_n, 2 * k_n] if delta else [v_n, v_n + k_n], axis=1)
        q, v = (first, last) if delta else (last, first)
        q, k = (part.reshape(len(x), shape.groups, shape.key) for part in (q, k))
        turns = shape.heads // shape.groups // shape.heads_per_key
        q, k = (np.tile(np.repeat(part, shape.heads_per_key, axis=1), (1, turns, 1)) for part in (q, k))
        v = v.reshape(len(x), shape.heads, shape.value)
        tensors = {name: self.model.numbers(f"{blk}{name}").ravel() for name in ("ssm_a", "ssm_dt.bias")}
        dt = np.log1p(np.exp(step + tensors["ssm_dt.bias"]))
        decay, states = np.exp(tensors["ssm_a"] * dt), np.zeros((shape.heads, shape.key, shape.value), x.dtype)
        if delta:
            q, k = (part / np.sqrt((part * part).sum(axis=-1, keepdims=True) + 1e-6) for part in (q, k))
            q = q * shape.key**-0.5
        y = np.zeros_like(v)
        for t in range(len(x)):
            states *= decay[t][:, None, None]
            if rate is not None:
                learnt = sigmoid(rate[t])[:, None] * (v[t] - np.einsum("hk,hkv->hv", k[t], states))
            else:
                learnt = dt[t][:, None] * v[t]
            states += np.einsum("hk,hv->hkv", k[t], learnt)
            y[t] = np.einsum("hk,hkv->hv", q[t], states)
        if not delta:
            y += self.model.numbers(f"{blk}ssm_d").reshape(-1, 1) * v
        return y.reshape(len(x), -1)

    def token_shift(self, x: Floats) -> Floats:
        return np.concatenate([np.zeros_like(x[:1]), x[:-1]])

    def lerp(self, x: Floats, other: Floats, weight: Floats) -> Floats:
        return x + weight * (other - x)

    def lerps(self, x: Floats, other: Floats, name: str, count: int) -> Sequence[Floats]:
        return [self.lerp(x, other, weight) for weight in self.model[name].reshape(count, -1)]

    def time_mix(self, blk: Block, x: HeadInputs) -> Floats:
        """Compute token by token, as in the paper: (n_tokens, heads * size)."""
        size = read_head_size(self.hparams, self.embedding_length)
        kinds = ("k_k", "k_a", "r_k", "ln")
        k_k, k_a, r_k, weight = (self.model[f"{blk}time_mix_{kind}"].reshape(-1, size) for kind in kinds)
        bias = self.model.bias(f"{blk}time_mix_ln").reshape(-1, size)
        r, w, k, v, a = (np.asarray(each).reshape(len(self.tokens), -1, size) for each in (x.r, x.w, x.k, x.v, x.a))
        a, decay = sigmoid(a), np.exp(-np.exp(-0.5) * sigmoid(w))
        removed = k * k_k
        removed = removed / np.maximum(np.sqrt((removed**2).sum(axis=-1, keepdims=True)), 1e-12)
        k = k * (1 + (a - 1) * k_a)
        states, y = np.zeros((k.shape[1], size, size), k.dtype), np.zeros_like(v)
        for t in range(len(k)):
            lost = np.einsum("hk,hkv->hv", removed[t], states)
            states *= decay[t][:, :, None]
            states += np.einsum("hk,hv->hkv", k[t], v[t]) - np.einsum("hk,hv->hkv", removed[t] * a[t], lost)
            y[t] = np.einsum("hk,hkv->hv", r[t], states)
        y = layer_norm(y, weight, size * self.eps) + bias + (r * k * r_k).sum(axis=-1, keepdims=True) * v
        return y.reshape(len(y), -1)

    def selective_scan(self, blk: Block, x: Floats, step: Floats, b: Floats, c: Floats) -> Floats:
        """Compute token by token, as in the paper."""
        a, dt = self.model.numbers(f"{blk}ssm_a"), np.log1p(np.exp(step))
        states, y = np.zeros_like(a), self.model.numbers(f"{blk}ssm_d") * x
        for t in range(len(x)):
            states = np.exp(a * dt[t][:, None]) * states + np.outer(dt[t] * x[t], b[t])
            y[t] += states @ c[t]
        return y

    def split_halves(self, x: Floats, heads: int) -> tuple[Floats, Floats]:
        parts = x.reshape(len(x), heads, 2, -1)
        return parts[:, :, 0].reshape(len(x), -1), parts[:, :, 1].reshape(len(x), -1)

    # --- mixtures of experts ---

    @property
    def has_experts(self) -> bool:
        return self.hparams.count("expert_count", 0, minimum=0) > 0

    def router(
        self, gating: str = "softmax", *, normed: bool = False, best_per_group: int = 2, weighs_inputs: bool = False
    ) -> Router:
        return read_router(
            self.hparams, gating, normed=normed, best_per_group=best_per_group, weighs_inputs=weighs_inputs
        )

    def experts(
        self, h: Floats, blk: Block, router: Router, activation: str, *, gated: bool = True,
        routed_by: Floats | None = None,
    ) -> Floats:  # fmt: skip
        seen = h if routed_by is None else routed_by
        scores, chosen = self.matmul(seen, f"{blk}ffn_gate_inp", router.count), np.zeros_like(h)
        probabilities = {"softmax": softmax, "sigmoid": sigmoid}.get(router.gating, np.asarray)(scores)
        bias = np.ravel(self.model.bias(f"{blk}exp_probs_b"))
        for token, p in enumerate(probabilities):
            by_group = (p + bias).reshape(router.groups, -1)
            sums = np.sort(by_group, axis=1)[:, -router.best_per_group :].sum(axis=1)
            left_out = np.argsort(-sums, kind="stable")[router.groups_used :]
            by_group[left_out] = -np.inf
            ids = np.argsort(-by_group.ravel(), kind="stable")[: router.used]
            weights = softmax(p[ids]) if router.gating == "softmax_of_chosen" else p[ids]
            if router.gating == "sparse_mixer":
                weights = np.array([sparse_mixer_weight(p, [*ids[:place]], id) for place, id in enumerate(ids)])
            weights = router.scale * weights / (weights.sum() if router.normed else 1)
            for id, weight in zip(ids, weights, strict=True):
                before, behind = (weight, 1.0) if router.weighs_inputs else (1.0, weight)
                f = self.expert_hidden(before * h[token : token + 1], blk, id, activation, gated=gated)
                chosen[token] += behind * self.model.expert(f"{blk}ffn_down_exps", id, f)[0]
        return chosen

    def expert_hidden(self, x: Floats, blk: Block, id: int, activation: str, *, gated: bool) -> Floats:
        """Return the input of an expert's last matrix."""
        if not gated:
            return ACTIVATIONS[activation](self.model.expert(f"{blk}ffn_up_exps", id, x))
        if self.has(f"{blk}ffn_gate_up_exps.weight"):
            gate, up = np.split(self.model.expert(f"{blk}ffn_gate_up_exps", id, x), 2, axis=1)
        else:
            gate, up = (self.model.expert(f"{blk}ffn_{name}_exps", id, x) for name in ("gate", "up"))
        return gated_activation(activation, gate, up)

    def shared_expert(self, h: Floats, blk: Block, activation: str, *, gated: bool = True) -> Floats:
        up = self.model.matmul(f"{blk}ffn_up_shexp", h)
        f = (
            gated_activation(activation, self.model.matmul(f"{blk}ffn_gate_shexp", h), up)
            if gated
            else ACTIVATIONS[activation](up)
        )
        y = self.model.matmul(f"{blk}ffn_down_shexp", f)
        name = f"{blk}ffn_gate_inp_shexp"
        return y * sigmoid(h @ self.model[name].reshape(-1, 1)) if self.has(f"{name}.weight") else y

    # --- attention ---

    def rope(
        self, pairs: str, *, truncate: bool = True, amplified: bool = True, with_temperature: bool = True
    ) -> RotaryEmbedding:
        keys, n = self.hparams, self.n_rot("rope.dimension_count", slides=False)
        base, kind = keys.positive("rope.freq_base", 10_000.0), keys.text("rope.scaling.type", "none")
        stretch, trained = keys.positive("rope.scaling.factor", 1.0), keys.count("context_length")
        original = keys.count("rope.scaling.original_context_length", trained)
        frequencies, amplitude = plain_frequencies(base, n), keys.positive("rope.scaling.attn_factor", 1.0)
        if kind == "linear":
            frequencies = frequencies / stretch
        if kind == "yarn":
            fast, slow = (keys.positive(f"rope.scaling.yarn_beta_{end}", n) for end, n in (("fast", 32.0), ("slow", 1)))
            frequencies = yarn_frequencies(frequencies, base, stretch, original, fast, slow, truncate)
            known = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
            if amplified or not known:
                amplitude *= (0.1 * math.log(stretch) + 1) / (0.1 * known * math.log(stretch) + 1)
        longer = (self.model.ctx_size or trained) > original
        for name in ("rope_freqs", "rope_factors_long" if longer else "rope_factors_short"):
            frequencies = frequencies / self.model.factors.get(name, 1.0)
        return RotaryEmbedding(
            pairs, frequencies, amplitude, self.temperature(0.0, original) if with_temperature else None
        )

    def temperature_rope(self, rate: float, original: int, *, offset: int = 0) -> RotaryEmbedding:
        return RotaryEmbedding(
            "halves", np.zeros(self.heads[0].key // 2), temperature=self.temperature(rate, original, offset)
        )

    def temperature(self, rate: float, original: int, offset: int = 0) -> Callable[[Positions], Floats]:
        rate = self.hparams.number("attention.temperature_scale", rate)
        original = self.hparams.count("attention.temperature_length", original)
        return lambda at: 1 + rate * np.log(1 + np.floor((at + offset) / original))

    def rope_swa(self, pairs: str, base: str = "") -> RotaryEmbedding:
        own = "rope.dimension_count_swa"
        n, usual = self.n_rot(own if self.hparams.has(own) else "rope.dimension_count", slides=True), 10_000.0
        usual = self.hparams.positive(base, usual) if base else usual
        return RotaryEmbedding(pairs, plain_frequencies(self.hparams.positive("rope.freq_base_swa", usual), n))

    def n_rot(self, key: str, *, slides: bool) -> int:
        kinds = zip(self.heads, sliding_window_layers(self.hparams, self.block_count, 0), strict=True)
        lengths = {kind: heads.key for heads, kind in kinds}
        return self.hparams.count(key, lengths.get(slides, self.heads[0].key))

    def sliding_window(self, default: int = 0) -> int:
        return self.hparams.count("attention.sliding_window", default, minimum=0)

    def sliding_layers(self, pattern: int, default_window: int = 0, *, first: bool = False) -> Sequence[bool]:
        window = self.sliding_window(default_window)
        return [
            flag and window > 0 for flag in sliding_window_layers(self.hparams, self.block_count, pattern, first=first)
        ]

    def has(self, name: str) -> bool:
        return self.model.has(name)

    def ignore(self, *names: str) -> None:
        pass

    def n_rows(self, name: str) -> int:
        return len(self.model[name])

    def kv_source_layers(self) -> Sequence[int]:
        return kv_source_layers(self.hparams, self.block_count, self.sliding_layers(0))

    def latent_shape(self) -> LatentShape:
        return read_latent_shape(self.hparams)

    def qkv(self, h: Floats, blk: Block, *, bias: bool = False) -> Sequence[Floats]:
        heads = blk.heads
        q, k, v = heads.count * heads.key, heads.count_kv * heads.key, heads.count_kv * heads.value
        if self.model.has(f"{blk}attn_qkv.weight"):
            return self.slices(h, f"{blk}attn_qkv", q, k, v)
        return [self.matmul(h, f"{blk}attn_{name}", n) for name, n in (("q", q), ("k", k), ("v", v))]

    def attend(
        self, blk: Block, q: Floats, k: Floats | None = None, v: Floats | None = None, *, rope: RotaryEmbedding | None,
        kv_source: int | None = None, norm: str = "none", window: int = 0, chunked: bool = False,
        scale: float | None = None,
        cap: float = 0.0, sinks: bool = False,
    ) -> Floats:  # fmt: skip
        """Attend to the position itself and those before it (`window` in all, if not 0, or those of its chunk); in an
        encoder, to all positions, or to half a window on each side.

        With context shift (`n_ctx` is set), layers without a window have one of n_ctx - sinks and also attend to the
        first `sinks` positions, as if from the end of the context.
        """
        model, position, factor = self.model, self.positions, self.model.scale or scale or blk.heads.key**-0.5
        q = split(q, blk.heads.count)

        def normed_and_rotated(x: Floats, name: str, at: Positions) -> Floats:
            if norm == "before_rope":
                x = rms_norm(x, model[f"{blk}attn_{name}_norm"], self.eps)
            if norm == "per_head":
                x = layer_norm(x, model[f"{blk}attn_{name}_norm"][:, None], self.eps)
            x = x if rope is None else rotate(x, at, rope)
            if rope is not None and rope.temperature and name == "q":
                x = x * rope.temperature(at)[:, None]
            if norm == "unweighted":
                x = rms_norm(x, np.ones(1), self.eps)
            return rms_norm(x, model[f"{blk}attn_{name}_norm"], self.eps) if norm == "after_rope" else x

        if k is not None:
            anchors = self.anchors(blk, rope, model.sinks if window == 0 else 0) if norm == "none" else 0.0
            k = model.store_in_cache(normed_and_rotated(split(k, blk.heads.count_kv), "k", position), anchors)
            v = k[..., -blk.heads.value :] if v is None else model.store_in_cache(split(v, blk.heads.count_kv))
            self.kv_cache[blk.number] = k, v
        k, v = self.kv_cache[blk.number if kv_source is None else kv_source]
        group = blk.heads.group  # query heads per KV head
        k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
        scores = normed_and_rotated(q, "q", position) @ k.transpose(0, 2, 1)  # (n_head, n_tokens, n_tokens)
        if window == 0 and model.n_ctx:
            window, near = model.n_ctx - model.sinks, np.minimum(position, model.n_ctx - 1)
            scores[..., : model.sinks] = normed_and_rotated(q, "q", near) @ k[:, : model.sinks].transpose(0, 2, 1)
            seen = visible(position, window, model.sinks)
        else:
            seen = visible(position, window) if self.causal else within_window(position, window)
        if chunked:
            seen &= position[:, None] // window == position[None, :] // window
        scores = np.where(seen, soft_cap(factor * scores, cap), -np.inf)
        if sinks:  # an extra column whose value is 0
            more = np.repeat(model[f"{blk}attn_sinks"][:, None], len(position), axis=1)[..., None]
            scores, v = np.concatenate([scores, more], axis=2), np.pad(v, ((0, 0), (0, 1), (0, 0)))
        mixed = softmax(scores) @ v
        return mixed.transpose(1, 0, 2).reshape(len(position), -1)

    def anchors(self, blk: Block, rope: RotaryEmbedding | None, sinks: int) -> Floats | float:
        """Return the mean of the rotated key bias over each position's page of 64 entries: (heads, n_tokens,
        head_size)."""
        bias = self.model.bias(f"{blk}attn_k")
        if isinstance(bias, float) or not self.model.anchored:
            return 0.0
        begin = np.where(self.positions < sinks, 0, sinks)
        first = self.positions - (self.positions - begin) % 64
        heads = split(np.tile(bias, (len(first), 1)), blk.heads.count_kv)
        near = (heads if rope is None else rotate(heads, first + cell, rope) for cell in range(64))
        return sum(near, np.zeros_like(heads)) / 64


def split(x: Floats, n: int) -> Floats:
    """Reshape (n_tokens, n * head_size) -> (n, n_tokens, head_size)."""
    return x.reshape(x.shape[0], n, -1).transpose(1, 0, 2)


def visible(position: Positions, window: int, sinks: int = 0) -> NDArray[np.bool_]:
    """Return whether a position (row) attends to another one (column): less than `window` back and not ahead, or a
    sink."""
    back = position[:, None] - position[None, :]
    return (back >= 0) & ((window == 0) | (back < window) | (position < sinks))


def within_window(position: Positions, window: int) -> NDArray[np.bool_]:
    """Return whether two positions are within half a window of each other."""
    apart = np.abs(position[:, None] - position[None, :])
    return (window == 0) | (apart <= window // 2)


# --- rope ---


def plain_frequencies(base: float, n: int) -> Floats:
    """Return the radians per position of each of n / 2 pairs."""
    return base ** (-2.0 * np.arange(n // 2) / n)


def yarn_frequencies(
    frequencies: Floats, base: float, stretch: float, original: int, fast: float, slow: float, truncate: bool
) -> Floats:
    """Return YaRN's frequencies (Peng et al., 2023, section 3.2): fast pairs are unchanged, slow ones slowed."""
    n, result = 2 * len(frequencies), frequencies.copy()

    def pair_of(times: float) -> float:
        return n * math.log(original / (times * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_of(fast), pair_of(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n - 1)
    for i in range(len(frequencies)):
        slowed = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
        result[i] = slowed * frequencies[i] / stretch + (1 - slowed) * frequencies[i]
    return result


def rotate(x: Floats, position: Positions, rope: RotaryEmbedding) -> Floats:
    """Rotate the first values of each head, two per frequency."""
    n = 2 * len(rope.frequencies)
    angle = position[:, None] * rope.frequencies
    cos, sin = ((rope.amplitude * part).astype(x.dtype) for part in (np.cos(angle), np.sin(angle)))
    result = x.copy()
    one = np.arange(0, n, 2) if rope.pairs == "interleaved" else np.arange(n // 2)
    other = one + (1 if rope.pairs == "interleaved" else n // 2)
    result[..., one] = x[..., one] * cos - x[..., other] * sin
    result[..., other] = x[..., one] * sin + x[..., other] * cos
    return result


# --- norms and activations ---


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Scale the last axis to a mean square of one."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps)) * weight


def layer_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Normalise the last axis to a mean of zero and a variance of one."""
    return rms_norm(x - x.mean(axis=-1, keepdims=True), weight, eps)


class AltUp:
    """Several residual streams, (tokens, streams, n)."""

    def __init__(self, builder: NumpyBuilder, x: Floats, count: int) -> None:
        self.builder, self.model, self.count = builder, builder.model, count
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
        seen = self.builder.norm(x, f"{blk}altup_router_norm")
        return np.tanh(self.builder.matmul(seen, f"{blk}altup_router", self.count) / x.shape[1])


def match_rms(y: Floats, x: Floats) -> Floats:
    """Scale each row of y to the norm of that of x."""
    squares = np.maximum((y * y).mean(axis=1, keepdims=True), 1e-5)
    return y * np.sqrt((x * x).mean(axis=1, keepdims=True) / squares)


def softmax(x: Floats) -> Floats:
    """Return the softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def sigmoid(x: Floats) -> Floats:
    """Return the logistic function."""
    return 1 / (1 + np.exp(-x))


def sparse_mixer_weight(logits: Floats, taken: Sequence[int], chosen: int) -> float:
    """Return the softmax weight of a logit among those that are not taken and within 0.02 of the larger magnitude."""
    largest = logits[chosen]
    near = [
        number
        for number, logit in enumerate(logits)
        if number not in taken and largest - logit <= 0.02 * max(abs(logit), largest)
    ]
    return float(1 / np.exp(logits[near] - largest).sum())


def soft_cap(x: Floats, cap: float) -> Floats:
    """Return cap * tanh(x / cap), or x if cap is 0."""
    return cap * np.tanh(x / cap) if cap else x


def silu(x: Floats) -> Floats:
    """Return x * sigmoid(x), in a form that does not overflow."""
    return x * 0.5 * (1.0 + np.tanh(0.5 * x))


def gelu(x: Floats) -> Floats:
    """Return the tanh approximation of GELU."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * x * (1.0 + 0.044715 * x * x)))


def gelu_erf(x: Floats) -> Floats:
    """Return the exact GELU."""
    return (0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))).astype(x.dtype)


def relu(x: Floats) -> Floats:
    return np.maximum(x, 0)


def relu_squared(x: Floats) -> Floats:
    return relu(x) ** 2


def gated_activation(activation: str, gate: Floats, up: Floats) -> Floats:
    """Return act(gate) * up. gpt-oss clamps both and adds one to up."""
    if activation == "clamped_swiglu":
        gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
        return gate * sigmoid(1.702 * gate) * (up + 1)
    return ACTIVATIONS[activation](gate) * up


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "none": np.asarray,
    "silu": silu,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "relu": relu,
    "relu_squared": relu_squared,
}
