"""The oracle: the words that architectures are written in, computed in plain numpy, written to be read.

An architecture's `record` is run with `Words` instead of the plan's recorder: the same steps, but each is computed at
once, for all tokens. Every weight is dequantized to `dtype` (float64 by default) and every operation is computed in it;
nothing is rounded, cached, blocked or fused. Knows no kernel of `quant` and no engine: files are opened by
`localinfer.files.gguf`, blocks are decoded by the `gguf` package.

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
from localinfer.engine.program import BIDIRECTIONAL
from localinfer.files.gguf import GGUF
from localinfer.plan.basics import Block
from localinfer.plan.experts import Router, read_router
from localinfer.plan.heads import Heads, read_heads
from localinfer.plan.keys import Keys, sliding, sources_of_keys
from localinfer.plan.latent import Latent, read_latent
from localinfer.plan.recurrence import Recurrence, read_recurrence
from localinfer.plan.time_mix import HeadInputs, read_head_size

Floats = NDArray[np.floating[Any]]  # of the model's dtype
Positions = NDArray[np.integer[Any]]


class Model:
    """A file's weights as plain matrices (decoded at first use, then kept), and what tests may change about it."""

    def __init__(self, file: GGUF, dtype: DTypeLike = np.float64) -> None:
        self.file, self.dtype = file, np.dtype(dtype)
        self.weights: dict[str, Floats] = {}
        self.n_ctx = self.sinks = 0  # if set, the policy `ring`: see attend
        self.ctx_size = 0  # for which context the rope is stretched: the trained one, if not said otherwise
        self.factors = {name: self[name] for name in ROPE_FACTORS if self.has(f"{name}.weight")}
        self.scale: float | None = None  # what scores are multiplied with, whatever the architecture says
        self.anchored = False  # whether keys are remembered as what they are beyond an anchor

    def has(self, name: str) -> bool:
        return name in self.file.tensors

    def __getitem__(self, name: str) -> Floats:
        """The tensor `<name>.weight`, rows first: a matrix is (n_out, n_in)."""
        if name not in self.weights:
            self.weights[name] = self.rows(name).astype(self.dtype)
        return self.weights[name]

    def numbers(self, name: str) -> Floats:
        """A tensor of numbers whose name has no ending."""
        tensor = self.file.tensors[name]
        return tensor.data.view(np.float32).astype(self.dtype).reshape(tensor.shape)

    def bias(self, name: str) -> Floats | float:
        """The tensor `<name>.bias`, (n_out,), or 0."""
        if not self.has(f"{name}.bias"):
            return 0.0
        tensor = self.file.tensors[f"{name}.bias"]
        return tensor.data.view(np.float32).astype(self.dtype).reshape(tensor.shape)

    def rows(self, name: str, rows: slice | NDArray[np.int64] = slice(None)) -> NDArray[np.float32]:
        """Some rows of a tensor, decoded and not kept."""
        tensor = self.file.tensors[name if self.has(name) else f"{name}.weight"]
        bytes_of_rows = tensor.data.reshape(*tensor.shape[:-1], -1)[rows]
        return gguf.dequantize(bytes_of_rows, gguf.GGMLQuantizationType(tensor.type))

    # What a computer with less precision would do differently: subclasses round here.

    def matmul(self, name: str, x: Floats) -> Floats:
        """(n, n_in) -> (n, n_out)"""
        return x @ self[name].T * self.factor(name)

    def factor(self, name: str) -> Floats | float:
        """What products of a matrix are multiplied with."""
        given = self.has(f"{name}.scale") and self.file.tensors[f"{name}.scale"].shape == (1,)
        return self.numbers(f"{name}.scale") if given else 1.0

    def expert(self, name: str, number: int, x: Floats) -> Floats:
        """One of many matrices, and of their biases: (n, n_in) -> (n, n_out)"""
        self.weights[f"{name} {number}"], bias = self[name][number], self.bias(name)
        factor = self.numbers(f"{name}.scale")[number] if self.has(f"{name}.scale") else 1.0
        return self.matmul(f"{name} {number}", x) * factor + (bias if isinstance(bias, float) else bias[number])

    def remember(self, kv: Floats, anchors: Floats | float = 0.0) -> Floats:
        """Keys or values on their way into the cache, (heads, n_tokens, head_size); keys with their anchors."""
        return kv


ROPE_FACTORS = ("rope_freqs", "rope_factors_short", "rope_factors_long")


def forward(model: Model, tokens: Sequence[int]) -> Floats:
    """Logits after each of `tokens`, which stand at positions 0, 1, ...: (n_tokens, n_vocab)."""
    words = spoken(model, tokens)
    return words.finish(np.concatenate([*output(model, words.normed)], axis=1))


def further(model: Model, tokens: Sequence[int]) -> Floats:
    """The logits after each of `tokens` as a head expects them that looks further ahead, which knows the token, and
    what those before it have become: (n_tokens, n_vocab)."""
    words = spoken(model, tokens)
    own, states = f"blk.{words.block_count}.nextn.shared_head_head", words.further
    return model.matmul(own, states) if model.has(f"{own}.weight") else np.concatenate([*output(model, states)], axis=1)


def hidden(model: Model, tokens: Sequence[int]) -> Floats:
    """What the last layer hands to the output layer, or an encoder gives: (n_tokens, n_embd)."""
    return spoken(model, tokens).normed


def spoken(model: Model, tokens: Sequence[int], types: Sequence[int] = ()) -> "Words":
    """What the architecture's words have come to; `types` are the parts of a pair that tokens are of."""
    words = Words(model, tokens, types)
    architectures.find(model.file)(words)  # type: ignore[arg-type]
    return words


def output(model: Model, x: Floats, chunk: int = 16_384) -> Iterator[Floats]:
    """The logits, `chunk` words of the vocabulary at a time: (n_tokens, chunk). Not yet scaled, nor capped."""
    name = "output" if model.has("output.weight") else "token_embd"
    n_vocab, bias = model.file.tensors[f"{name}.weight"].shape[0], model.bias(name)
    for start in range(0, n_vocab, chunk):
        model.weights["output chunk"] = model.rows(name, slice(start, start + chunk)).astype(model.dtype)
        own = bias if isinstance(bias, float) else bias[start : start + chunk]
        yield model.matmul("output chunk", x) * model.factor(name) + own


@dataclass(frozen=True, eq=False)
class Turning:
    """Which pairs of a head turn, by how many radians a position; what the rotated values are multiplied with."""

    pairs: str
    frequencies: Floats
    amplitude: float = 1.0
    growth: Callable[[Positions], Floats] | None = None  # of queries


class Words:
    """See `localinfer.plan.recorder.Recorder`, which has the same words."""

    def __init__(self, model: Model, tokens: Sequence[int], types: Sequence[int] = ()) -> None:
        self.model, self.tokens = model, np.asarray(tokens)
        self.types = np.asarray(types or [0] * len(tokens))
        self.positions = np.arange(len(self.tokens))
        self.keys = keys = Keys(model.file)
        ahead = keys.count("nextn_predict_layers", 0, least=0)  # blocks that predict further tokens
        self.block_count, self.embedding_length = keys.count("block_count") - ahead, keys.count("embedding_length")
        self.heads: Sequence[Heads] = read_heads(keys, self.embedding_length, self.block_count)
        self.by_mean = keys.has("attention.layer_norm_epsilon") and not keys.has("attention.layer_norm_rms_epsilon")
        self.eps = keys.positive("attention.layer_norm_epsilon" if self.by_mean else "attention.layer_norm_rms_epsilon")
        self.causal = keys.flag("attention.causal", keys.architecture not in BIDIRECTIONAL)
        self.past: dict[int, tuple[Floats, Floats]] = {}  # of each block: keys and values
        self.finish: Callable[[Floats], Floats] = lambda logits: logits
        self.further: Floats = np.zeros((0, 0))  # the states of a head that looks further ahead

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

    def states(self, x: Floats, norm: str = "") -> None:
        self.normed = self.norm(x, norm) if norm else x

    def layer_inputs(self, x: Floats, size: int) -> Floats:
        said = self.model.matmul("per_layer_model_proj", x / math.sqrt(x.shape[1]))
        rows = self.model.rows("per_layer_token_embd", self.tokens).astype(self.model.dtype)
        return (rows * math.sqrt(size) + self.norm_parts(said, size, "per_layer_proj_norm.weight")) / math.sqrt(2)

    def logits(self, x: Floats, *, scale: float = 1.0, cap: float = 0.0, norm: str = "output_norm") -> None:
        self.states(x, norm)
        self.finish = lambda logits: soft_cap(scale * logits, cap)

    def look_ahead(self, x: Floats, through: Callable[[Block, Floats], None], norm: str = "output_norm") -> None:
        """What a further head expects behind the token that comes next: row t is of tokens 0 to t, and of what those
        before t have become."""
        blk = Block(self.block_count, next(heads for heads in reversed(self.heads) if heads.count_kv))
        own = f"{blk}nextn."
        if not self.has(f"{own}eh_proj.weight"):
            return
        before = np.concatenate([np.zeros((1, x.shape[1]), x.dtype), self.norm(x, norm)[:-1]])
        name = f"{own}embed_tokens" if self.has(f"{own}embed_tokens.weight") else "token_embd"
        embedded = self.model.rows(name, self.tokens).astype(x.dtype)
        both = np.concatenate([self.norm(embedded, f"{own}enorm"), self.norm(before, f"{own}hnorm")], axis=1)
        y = self.model.matmul(f"{own}eh_proj", both)
        through(blk, y)
        self.further = self.norm(y, f"{own}shared_head_norm" if self.has(f"{own}shared_head_norm.weight") else norm)

    # --- rows ---

    def norm(self, x: Floats, name: str, *, in_place: bool = False) -> Floats:
        if in_place:
            x[:] = self.norm(x, name)
            return x
        if self.by_mean:
            return layer_norm(x, self.model[name], self.eps) + self.model.bias(name)
        return rms_norm(x, self.model[name], self.eps)

    def norm_parts(
        self, x: Floats, size: int, tensor: str = "", *, each: bool = False, into: Floats | None = None
    ) -> Floats:
        parts, weight = x.reshape(len(x), -1, size), self.vector(tensor) if tensor else np.ones(size, x.dtype)
        y = rms_norm(parts, weight.reshape(-1, size) if each else weight, self.eps).reshape(x.shape)
        if into is not None:
            into[:] = y
        return y

    def vector(self, tensor: str) -> Floats:
        return self.model.file.tensors[tensor].data.view(np.float32).astype(self.model.dtype)

    def add_norm(self, x: Floats, branch: Floats, name: str) -> None:
        x += self.norm(branch, name)

    def add(self, x: Floats, branch: Floats, factor: float = 1.0) -> None:
        x += factor * branch

    def add_vector(self, x: Floats, tensor: str) -> Floats:
        return x + self.vector(tensor)

    def lasting(self, n: int) -> Floats:
        return np.zeros((len(self.tokens), n), self.model.dtype)

    def copy(self, x: Floats, to: Floats) -> None:
        to[:] = x

    def number(self, tensor: str) -> float:
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
        self, h: Floats, blk: Block, activation: str, *, gated: bool = True, least: float = -math.inf
    ) -> Floats:
        lengths = self.keys.counts("feed_forward_length", self.block_count, least=0)
        n = lengths[min(blk.number, self.block_count - 1)]
        if not gated:
            return ACTIVATIONS[activation](self.matmul(h, f"{blk}ffn_up", n))
        if len(self.model[f"{blk}ffn_up"]) == 2 * n:
            gate, up = self.slices(h, f"{blk}ffn_up", n, n)
        else:
            gate, up = (self.matmul(h, f"{blk}ffn_{name}", n) for name in ("gate", "up"))
        if math.isfinite(least):
            mean, deviation = gate.mean(axis=1, keepdims=True), gate.std(axis=1, keepdims=True)
            gate = relu(gate - mean - least * deviation)
        return unit(activation, gate, up)

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

    def streams(self, x: Floats, count: int) -> "Streams":
        return Streams(self, x, count)

    # --- states ---

    def convolve(self, x: Floats, name: str, width: int, activation: str = "none") -> Floats:
        before = np.concatenate([np.zeros((width - 1, x.shape[1]), x.dtype), x])
        ages = (before[age : age + len(x)] * self.model[name][:, age] for age in range(width))
        return ACTIVATIONS[activation](sum(ages) + self.model.bias(name))

    def recurrence(self, rule: str, *, neighbours: bool = False) -> Recurrence:
        return read_recurrence(self.keys, rule, neighbours=neighbours)

    def recur(self, blk: Block, x: Floats, step: Floats, rate: Floats | None, shape: Recurrence) -> Floats:
        """One token after the other, as the papers have it: (n_tokens, heads * value)."""
        delta, k_n, v_n = shape.rule == "delta", shape.groups * shape.key, shape.heads * shape.value
        first, k, last = np.split(x, [k_n, 2 * k_n] if delta else [v_n, v_n + k_n], axis=1)
        q, v = (first, last) if delta else (last, first)
        q, k = (part.reshape(len(x), shape.groups, shape.key) for part in (q, k))
        turns = shape.heads // shape.groups // shape.share
        q, k = (np.tile(np.repeat(part, shape.share, axis=1), (1, turns, 1)) for part in (q, k))
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

    def shift(self, x: Floats) -> Floats:
        return np.concatenate([np.zeros_like(x[:1]), x[:-1]])

    def lerp(self, x: Floats, other: Floats, weight: Floats) -> Floats:
        return x + weight * (other - x)

    def lerps(self, x: Floats, other: Floats, name: str, count: int) -> Sequence[Floats]:
        return [self.lerp(x, other, weight) for weight in self.model[name].reshape(count, -1)]

    def time_mix(self, blk: Block, x: HeadInputs) -> Floats:
        """One token after the other, as the paper has it: (n_tokens, heads * size)."""
        size = read_head_size(self.keys, self.embedding_length)
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

    def scan(self, blk: Block, x: Floats, step: Floats, b: Floats, c: Floats) -> Floats:
        """One token after the other, as the paper has it."""
        a, dt = self.model.numbers(f"{blk}ssm_a"), np.log1p(np.exp(step))
        states, y = np.zeros_like(a), self.model.numbers(f"{blk}ssm_d") * x
        for t in range(len(x)):
            states = np.exp(a * dt[t][:, None]) * states + np.outer(dt[t] * x[t], b[t])
            y[t] += states @ c[t]
        return y

    def halves(self, x: Floats, heads: int) -> tuple[Floats, Floats]:
        parts = x.reshape(len(x), heads, 2, -1)
        return parts[:, :, 0].reshape(len(x), -1), parts[:, :, 1].reshape(len(x), -1)

    # --- mixtures of experts ---

    @property
    def has_experts(self) -> bool:
        return self.keys.count("expert_count", 0, least=0) > 0

    def router(
        self, gating: str = "softmax", *, normed: bool = False, best: int = 2, weighs_inputs: bool = False
    ) -> Router:
        return read_router(self.keys, gating, normed=normed, best=best, weighs_inputs=weighs_inputs)

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
            sums = np.sort(by_group, axis=1)[:, -router.best :].sum(axis=1)
            left_out = np.argsort(-sums, kind="stable")[router.groups_used :]
            by_group[left_out] = -np.inf
            ids = np.argsort(-by_group.ravel(), kind="stable")[: router.used]
            weights = softmax(p[ids]) if router.gating == "softmax_of_chosen" else p[ids]
            if router.gating == "sparse_mixer":
                weights = np.array([share_of_near(p, [*ids[:place]], id) for place, id in enumerate(ids)])
            weights = router.scale * weights / (weights.sum() if router.normed else 1)
            for id, weight in zip(ids, weights, strict=True):
                before, behind = (weight, 1.0) if router.weighs_inputs else (1.0, weight)
                f = self.of_expert(before * h[token : token + 1], blk, id, activation, gated=gated)
                chosen[token] += behind * self.model.expert(f"{blk}ffn_down_exps", id, f)[0]
        return chosen

    def of_expert(self, x: Floats, blk: Block, id: int, activation: str, *, gated: bool) -> Floats:
        """What an expert's last matrix is given."""
        if not gated:
            return ACTIVATIONS[activation](self.model.expert(f"{blk}ffn_up_exps", id, x))
        if self.has(f"{blk}ffn_gate_up_exps.weight"):
            gate, up = np.split(self.model.expert(f"{blk}ffn_gate_up_exps", id, x), 2, axis=1)
        else:
            gate, up = (self.model.expert(f"{blk}ffn_{name}_exps", id, x) for name in ("gate", "up"))
        return unit(activation, gate, up)

    def shared_expert(self, h: Floats, blk: Block, activation: str, *, gated: bool = True) -> Floats:
        up = self.model.matmul(f"{blk}ffn_up_shexp", h)
        f = unit(activation, self.model.matmul(f"{blk}ffn_gate_shexp", h), up) if gated else ACTIVATIONS[activation](up)
        y = self.model.matmul(f"{blk}ffn_down_shexp", f)
        name = f"{blk}ffn_gate_inp_shexp"
        return y * sigmoid(h @ self.model[name].reshape(-1, 1)) if self.has(f"{name}.weight") else y

    # --- attention ---

    def rope(self, pairs: str, *, truncate: bool = True, amplified: bool = True, grows: bool = True) -> Turning:
        keys, n = self.keys, self.n_rot("rope.dimension_count", slides=False)
        base, kind = keys.positive("rope.freq_base", 10_000.0), keys.text("rope.scaling.type", "none")
        stretch, trained = keys.positive("rope.scaling.factor", 1.0), keys.count("context_length")
        original = keys.count("rope.scaling.original_context_length", trained)
        frequencies, amplitude = plain(base, n), keys.positive("rope.scaling.attn_factor", 1.0)
        if kind == "linear":
            frequencies = frequencies / stretch
        if kind == "yarn":
            fast, slow = (keys.positive(f"rope.scaling.yarn_beta_{end}", n) for end, n in (("fast", 32.0), ("slow", 1)))
            frequencies = yarn(frequencies, base, stretch, original, fast, slow, truncate)
            known = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
            if amplified or not known:
                amplitude *= (0.1 * math.log(stretch) + 1) / (0.1 * known * math.log(stretch) + 1)
        longer = (self.model.ctx_size or trained) > original
        for name in ("rope_freqs", "rope_factors_long" if longer else "rope_factors_short"):
            frequencies = frequencies / self.model.factors.get(name, 1.0)
        return Turning(pairs, frequencies, amplitude, self.growth(0.0, original) if grows else None)

    def growing(self, rate: float, original: int, *, ahead: int = 0) -> Turning:
        return Turning("halves", np.zeros(self.heads[0].key // 2), growth=self.growth(rate, original, ahead))

    def growth(self, rate: float, original: int, ahead: int = 0) -> Callable[[Positions], Floats]:
        rate = self.keys.number("attention.temperature_scale", rate)
        original = self.keys.count("attention.temperature_length", original)
        return lambda at: 1 + rate * np.log(1 + np.floor((at + ahead) / original))

    def rope_swa(self, pairs: str, base: str = "") -> Turning:
        own = "rope.dimension_count_swa"
        n, usual = self.n_rot(own if self.keys.has(own) else "rope.dimension_count", slides=True), 10_000.0
        usual = self.keys.positive(base, usual) if base else usual
        return Turning(pairs, plain(self.keys.positive("rope.freq_base_swa", usual), n))

    def n_rot(self, key: str, *, slides: bool) -> int:
        kinds = zip(self.heads, sliding(self.keys, self.block_count, 0), strict=True)
        lengths = {kind: heads.key for heads, kind in kinds}
        return self.keys.count(key, lengths.get(slides, self.heads[0].key))

    def sliding_window(self, default: int = 0) -> int:
        return self.keys.count("attention.sliding_window", default, least=0)

    def sliding(self, pattern: int, default_window: int = 0, *, first: bool = False) -> Sequence[bool]:
        window = self.sliding_window(default_window)
        return [flag and window > 0 for flag in sliding(self.keys, self.block_count, pattern, first=first)]

    def has(self, name: str) -> bool:
        return self.model.has(name)

    def ignore(self, *names: str) -> None:
        pass

    def rows(self, name: str) -> int:
        return len(self.model[name])

    def sources_of_keys(self) -> Sequence[int]:
        return sources_of_keys(self.keys, self.block_count, self.sliding(0))

    def latent(self) -> Latent:
        return read_latent(self.keys)

    def qkv(self, h: Floats, blk: Block, *, bias: bool = False) -> Sequence[Floats]:
        heads = blk.heads
        q, k, v = heads.count * heads.key, heads.count_kv * heads.key, heads.count_kv * heads.value
        if self.model.has(f"{blk}attn_qkv.weight"):
            return self.slices(h, f"{blk}attn_qkv", q, k, v)
        return [self.matmul(h, f"{blk}attn_{name}", n) for name, n in (("q", q), ("k", k), ("v", v))]

    def attend(
        self, blk: Block, q: Floats, k: Floats | None = None, v: Floats | None = None, *, rope: Turning | None,
        of: int | None = None, norm: str = "no", window: int = 0, stretches: bool = False, scale: float | None = None,
        cap: float = 0.0, sinks: bool = False,
    ) -> Floats:  # fmt: skip
        """Every position looks at itself and at those before it (`window` in all, if not 0, or those since its last
        multiple); in an encoder at all, or half a window to each side.

        With the policy `ring`, layers without a window have one of n_ctx - sinks, and look at the first `sinks`
        positions as well, as if from the end of the context.
        """
        model, position, factor = self.model, self.positions, self.model.scale or scale or blk.heads.key**-0.5
        q = split(q, blk.heads.count)

        def turned(x: Floats, name: str, at: Positions) -> Floats:
            if norm == "before":
                x = rms_norm(x, model[f"{blk}attn_{name}_norm"], self.eps)
            if norm == "each":
                x = layer_norm(x, model[f"{blk}attn_{name}_norm"][:, None], self.eps)
            x = x if rope is None else turn(x, at, rope)
            if rope is not None and rope.growth and name == "q":
                x = x * rope.growth(at)[:, None]
            if norm == "to_one":
                x = rms_norm(x, np.ones(1), self.eps)
            return rms_norm(x, model[f"{blk}attn_{name}_norm"], self.eps) if norm == "after" else x

        if k is not None:
            anchors = self.anchors(blk, rope, model.sinks if window == 0 else 0) if norm == "no" else 0.0
            k = model.remember(turned(split(k, blk.heads.count_kv), "k", position), anchors)
            v = k[..., -blk.heads.value :] if v is None else model.remember(split(v, blk.heads.count_kv))
            self.past[blk.number] = k, v
        k, v = self.past[blk.number if of is None else of]
        group = blk.heads.group  # so many query heads share one key and value head
        k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
        scores = turned(q, "q", position) @ k.transpose(0, 2, 1)  # (n_head, n_tokens, n_tokens)
        if window == 0 and model.n_ctx:
            window, near = model.n_ctx - model.sinks, np.minimum(position, model.n_ctx - 1)
            scores[..., : model.sinks] = turned(q, "q", near) @ k[:, : model.sinks].transpose(0, 2, 1)
            seen = visible(position, window, model.sinks)
        else:
            seen = visible(position, window) if self.causal else near_by(position, window)
        if stretches:
            seen &= position[:, None] // window == position[None, :] // window
        scores = np.where(seen, soft_cap(factor * scores, cap), -np.inf)
        if sinks:  # a column more, of which nothing comes
            more = np.repeat(model[f"{blk}attn_sinks"][:, None], len(position), axis=1)[..., None]
            scores, v = np.concatenate([scores, more], axis=2), np.pad(v, ((0, 0), (0, 1), (0, 0)))
        mixed = softmax(scores) @ v
        return mixed.transpose(1, 0, 2).reshape(len(position), -1)


    def anchors(self, blk: Block, rope: Turning | None, sinks: int) -> Floats | float:
        """What the bias of keys comes to, on average, in the 64 cells that lie together with each position's: (heads,
        n_tokens, head_size)."""
        bias = self.model.bias(f"{blk}attn_k")
        if isinstance(bias, float) or not self.model.anchored:
            return 0.0
        begin = np.where(self.positions < sinks, 0, sinks)
        first = self.positions - (self.positions - begin) % 64
        heads = split(np.tile(bias, (len(first), 1)), blk.heads.count_kv)
        near = (heads if rope is None else turn(heads, first + cell, rope) for cell in range(64))
        return sum(near, np.zeros_like(heads)) / 64


def split(x: Floats, n: int) -> Floats:
    """(n_tokens, n * head_size) -> (n, n_tokens, head_size)"""
    return x.reshape(x.shape[0], n, -1).transpose(1, 0, 2)


def visible(position: Positions, window: int, sinks: int = 0) -> NDArray[np.bool_]:
    """Whether a position (row) may look at one (column): less than `window` back, not ahead; or a sink."""
    back = position[:, None] - position[None, :]
    return (back >= 0) & ((window == 0) | (back < window) | (position < sinks))


def near_by(position: Positions, window: int) -> NDArray[np.bool_]:
    """Whether a position is within half a window of another, on either side."""
    apart = np.abs(position[:, None] - position[None, :])
    return (window == 0) | (apart <= window // 2)


# --- rope ---


def plain(base: float, n: int) -> Floats:
    """Radians a position for each of n / 2 pairs."""
    return base ** (-2.0 * np.arange(n // 2) / n)


def yarn(
    frequencies: Floats, base: float, stretch: float, original: int, fast: float, slow: float, truncate: bool
) -> Floats:
    """YaRN (Peng et al., 2023, section 3.2): pairs that turn often stay, pairs that turn rarely are slowed."""
    n, result = 2 * len(frequencies), frequencies.copy()

    def pair_that_turns(times: float) -> float:
        return n * math.log(original / (times * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_that_turns(fast), pair_that_turns(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n - 1)
    for i in range(len(frequencies)):
        slowed = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
        result[i] = slowed * frequencies[i] / stretch + (1 - slowed) * frequencies[i]
    return result


def turn(x: Floats, position: Positions, rope: Turning) -> Floats:
    """The first values of each head rotated, two for each frequency."""
    n = 2 * len(rope.frequencies)
    angle = position[:, None] * rope.frequencies
    cos, sin = ((rope.amplitude * part).astype(x.dtype) for part in (np.cos(angle), np.sin(angle)))
    result = x.copy()
    one = np.arange(0, n, 2) if rope.pairs == "neighbours" else np.arange(n // 2)
    other = one + (1 if rope.pairs == "neighbours" else n // 2)
    result[..., one] = x[..., one] * cos - x[..., other] * sin
    result[..., other] = x[..., one] * sin + x[..., other] * cos
    return result


# --- norms and activations ---


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Scale the last axis to a mean square of one."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps)) * weight


def layer_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Shift and scale the last axis to a mean of zero and a variance of one."""
    return rms_norm(x - x.mean(axis=-1, keepdims=True), weight, eps)


class Streams:
    """Several residual streams, (tokens, streams, n)."""

    def __init__(self, words: Words, x: Floats, count: int) -> None:
        self.words, self.model, self.count = words, words.model, count
        self.xs = np.stack([x, *(as_long(x @ matrix.T, x) for matrix in self.model["altup_proj"])], axis=1)
        self.predicted = self.xs

    def predict(self, blk: Block) -> Floats:
        weights = self.said(blk, self.xs[:, 0]) @ self.model[f"{blk}altup_predict_coef"].T
        self.predicted = self.xs + weights.reshape(-1, self.count, self.count) @ self.xs
        return self.predicted[:, 0].copy()

    def correct(self, blk: Block, y: Floats) -> Floats:
        weights = 1 + self.said(blk, y) @ self.model[f"{blk}altup_correct_coef"].T
        self.xs = self.predicted + weights[:, :, None] * (y - self.predicted[:, 0])[:, None]
        return self.xs[:, 0] * self.model[f"{blk}altup_correct_scale"]

    def add_to_others(self, branch: Floats) -> None:
        self.xs[:, 1:] += branch[:, None]

    def merged(self) -> Floats:
        first, matrices = self.xs[:, 0], self.model["altup_unembd_proj"]
        others = (as_long(self.xs[:, 1 + number] @ m.T, first) for number, m in enumerate(matrices))
        return sum(others, first) / self.count

    def said(self, blk: Block, x: Floats) -> Floats:
        """A number within 1 for each stream."""
        seen = self.words.norm(x, f"{blk}altup_router_norm")
        return np.tanh(self.words.matmul(seen, f"{blk}altup_router", self.count) / x.shape[1])


def as_long(y: Floats, x: Floats) -> Floats:
    """Each row of y as long as that of x."""
    squares = np.maximum((y * y).mean(axis=1, keepdims=True), 1e-5)
    return y * np.sqrt((x * x).mean(axis=1, keepdims=True) / squares)


def softmax(x: Floats) -> Floats:
    """Over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def sigmoid(x: Floats) -> Floats:
    """The logistic function."""
    return 1 / (1 + np.exp(-x))


def share_of_near(logits: Floats, taken: Sequence[int], chosen: int) -> float:
    """The softmax of a logit over those that are not taken yet and no further off than 0.02 of the larger one."""
    largest = logits[chosen]
    near = [
        number
        for number, logit in enumerate(logits)
        if number not in taken and largest - logit <= 0.02 * max(abs(logit), largest)
    ]
    return float(1 / np.exp(logits[near] - largest).sum())


def soft_cap(x: Floats, cap: float) -> Floats:
    """x, no further from 0 than the cap, if that is not 0."""
    return cap * np.tanh(x / cap) if cap else x


def silu(x: Floats) -> Floats:
    """x * sigmoid(x), in a form that does not overflow."""
    return x * 0.5 * (1.0 + np.tanh(0.5 * x))


def gelu(x: Floats) -> Floats:
    """The tanh approximation, which is what gemma3 was trained with."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * x * (1.0 + 0.044715 * x * x)))


def gelu_erf(x: Floats) -> Floats:
    """The exact one."""
    return (0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))).astype(x.dtype)


def relu(x: Floats) -> Floats:
    return np.maximum(x, 0)


def relu_squared(x: Floats) -> Floats:
    return relu(x) ** 2


def unit(activation: str, gate: Floats, up: Floats) -> Floats:
    """act(gate) * up; gpt-oss keeps both within limits, and adds one to the second."""
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
