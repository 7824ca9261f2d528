"""The operations of architecture files, computed at once, in numpy, for all tokens: dense models, mixtures of experts
and encoders. `localinfer.naive.recurrence` has state spaces and linear attention.

An architecture file calls them in the order of the model: `llama` looks up token embeddings, and in each layer
normalizes the residual stream, multiplies it with matrices, attends, and adds what comes out to the stream. Activations
are arrays (n_tokens, n), row t for the token at position t. Each class has the operations of a topic.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.builder import (
    BlockFunction,
    CrossAttentionOperations,
    EmbeddingOperations,
    ModalityFunction,
    MtpSpec,
    Ngrams,
    OutputOperations,
)
from localinfer.graph.properties.attention import AttentionSpec, BlockChoice, RunChoice, relative_buckets
from localinfer.graph.properties.direction import is_causal
from localinfer.graph.properties.model_properties import DECODER, ENCODER, Block, has_decoder
from localinfer.graph.properties.rope import NO_ROPE, Rope
from localinfer.naive.altup import NumpyCrossLayer
from localinfer.naive.embedded_adapters import active_adapters, added_by_adapters
from localinfer.naive.experts import NumpyExperts
from localinfer.naive.formulas import (
    ACTIVATIONS,
    Floats,
    Positions,
    alibi,
    gated_activation,
    join_heads,
    largest,
    layer_norm,
    ngram_rows,
    relu,
    rms_norm,
    rotate,
    seen_runs,
    soft_cap,
    softmax,
    split_heads,
    temperature_at,
    visible,
    within_window,
    xielu,
)
from localinfer.naive.heads import NumpyHeads
from localinfer.naive.media import NaiveMedia
from localinfer.naive.mtp import compute_mtp_states
from localinfer.naive.points import PointBuilder
from localinfer.naive.positions import RopeOptions, key_anchors, rope_of_file
from localinfer.naive.recurrence import NumpyRecurrence
from localinfer.naive.weights import Model

Visible = tuple[Floats, Floats, NDArray[np.bool_]]  # scores, values, and which of them a position attends to


class NumpyBuilder(PointBuilder):
    """The operations on numpy arrays, (n_tokens, n). `types` are the segments of a text pair that tokens belong to."""

    embeddings: "NumpyEmbeddings"
    per_head: NumpyHeads
    output: "NumpyOutput"

    def __init__(self, model: Model, tokens: Sequence[int], types: Sequence[int] = ()) -> None:
        encoder_decoder, self.decoder_tokens = has_decoder(model.file), [id for id in tokens if id >= 0]
        tokens = [~id for id in tokens if id < 0] if encoder_decoder else tokens
        super().__init__(model, len(tokens))
        self.active = np.zeros(0, np.int32)  # the embedded adapter of each token, if the model has any
        self.is_encoding = encoder_decoder
        self.set_tokens(tokens, causal=is_causal(self.hparams) and not encoder_decoder)
        self.embeddings = NumpyEmbeddings(self, np.asarray(types or [0] * len(tokens)))
        self.per_head = NumpyHeads(model)
        self.output = NumpyOutput(self)
        self.kv_cache: dict[int, tuple[Floats, Floats]] = {}  # keys and values of each layer
        self.residual: Floats | None = None
        # by the last `select_...`: for all key heads or for each of them, (choices, n_tokens, n_tokens)
        self.selected: NDArray[np.bool_] = np.ones((1, len(tokens), len(tokens)), bool)

    def set_tokens(self, tokens: Sequence[int], *, causal: bool) -> None:
        """Compute the next operations for these tokens, from position 0 on."""
        self.n_tokens, self.positions, self.causal = len(tokens), np.arange(len(tokens)), causal
        self.media = NaiveMedia(tokens, self.model.media)
        self.token_ids = np.maximum(np.asarray(tokens), 0)
        if embedded := self.properties.embedded_adapters:
            self.active = active_adapters(embedded, self.token_ids)
            self.token_ids = embedded.substitutes[self.token_ids].astype(np.int64)

    @cached_property
    def recurrent(self) -> "NumpyRecurrence":
        return NumpyRecurrence(self)

    @cached_property
    def experts(self) -> NumpyExperts:
        return NumpyExperts(self)

    @cached_property
    def cross_attention(self) -> "NumpyCrossAttention":
        return NumpyCrossAttention(self)

    @cached_property
    def cross_layer(self) -> NumpyCrossLayer:
        return NumpyCrossLayer(self, self.model, self.n_tokens)

    def blocks(self, group: str = "blk") -> Iterator[Block]:
        for number, heads in enumerate(self.properties.heads_of(group)):
            blk, x = Block(number, heads, group), None if self.cross_layer.has_streams else self.residual
            if x is not None:
                self.point(x, f"{blk}resid_pre")
            yield blk
            if x is not None:
                has_direction = group != ENCODER or not self.properties.has_decoder
                x += self.model.directions.get(number, 0.0) if has_direction else 0.0  # a control vector
                self.point(x, f"{blk}resid_post")

    # --- rows ---

    def norm(
        self, x: Floats, name: str, *, in_place: bool = False, layer_norm_eps: float = 0.0, eps: float | None = None
    ) -> Floats:
        if in_place:
            x[:] = self.norm(x, name, layer_norm_eps=layer_norm_eps, eps=eps)
            return x
        normalize = layer_norm if self.uses_layer_norm or layer_norm_eps else rms_norm
        weight = self.model[name] if self.properties.has_norm_weights else np.ones(x.shape[1], x.dtype)
        self.point(y := normalize(x, weight, layer_norm_eps or eps or self.eps) + self.model.bias(name), name)
        return y

    def norm_groups(
        self, x: Floats, size: int, tensor: str = "", *, per_group_weight: bool = False, eps: float | None = None,
        out: Floats | None = None,
    ) -> Floats:  # fmt: skip
        groups = x.reshape(len(x), -1, size)
        weight = self.model.vector(tensor) if tensor else np.ones(size, x.dtype)
        weight = weight.reshape(groups.shape[1], -1) if per_group_weight else weight
        y = rms_norm(groups, weight, eps or self.eps).reshape(x.shape)
        if out is not None:
            out[:] = y
        return y

    def add_norm(self, x: Floats, branch: Floats, name: str, *, eps: float | None = None) -> None:
        x += self.norm(branch, name, eps=eps)

    def add(self, x: Floats, branch: Floats, factor: float = 1.0) -> None:
        x += factor * branch

    def add_vector(self, x: Floats, tensor: str) -> Floats:
        x += self.model.vector(tensor)
        return x

    def clip(self, x: Floats, limit: float) -> None:
        x[:] = np.clip(x, -limit, limit)

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

    def by_modality(self, x: Floats, function: ModalityFunction[Floats]) -> Sequence[Floats]:
        return self.media.by_modality(x, function)

    def xielu(self, x: Floats, alpha_p: float, alpha_n: float, beta: float, eps: float) -> None:
        x[:] = xielu(x, alpha_p, alpha_n, beta, eps)

    # --- matrices ---

    def matmul(self, x: Floats, name: str, n_out: int, *, add_to: Floats | None = None) -> Floats:
        y = self.product(x, name)
        assert y.shape[1] == n_out
        if "blk." in name:  # the embedding may be the output matrix, too
            self.point(y, name)
        if add_to is None:
            return y
        add_to += y
        return add_to

    def matmuls(self, x: Floats, *matrices: tuple[str, int]) -> Sequence[Floats]:
        return [self.matmul(x, name, n_out) for name, n_out in matrices]

    def slices(self, x: Floats, name: str, *n_outs: int) -> Sequence[Floats]:
        return np.split(self.product(x, name), np.cumsum(n_outs)[:-1], axis=1)

    def product(self, x: Floats, name: str) -> Floats:
        return self.model.matmul(name, x) + self.model.bias(name) + added_by_adapters(self.model, name, x, self.active)

    # --- attention ---

    def rope(
        self, pairs: str, *, truncate: bool = True, amplified: bool = True, with_temperature: bool = True,
        base: str = "rope.freq_base",
    ) -> Rope:  # fmt: skip
        n, options = self.properties.key_length(sliding=False), RopeOptions(truncate, amplified, with_temperature, base)
        return rope_of_file(self.model, self.hparams, pairs, n, options)

    def attend(
        self, blk: Block, q: Floats, k: Floats | None, v: Floats | None, spec: AttentionSpec, *,
        kv_source: int | None = None, compressed: Floats | None = None,
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
                x = x * temperature_at(rope.temperature, at[:, 0]).astype(x.dtype)[:, None]
            if spec.head_norm == "unweighted":
                x = rms_norm(x, np.ones(1, x.dtype), self.eps)
            return rms_norm(x, model[f"{blk}attn_{name}_norm"], self.eps) if spec.head_norm == "after_rope" else x

        if k is not None:
            has_anchors, sinks = model.anchored and spec.head_norm == "none", 0 if window else model.sinks
            anchors = key_anchors(model, blk, rope, position, sinks) if has_anchors else 0.0
            k = normed_and_rotated(split_heads(k, blk.heads.count_kv), "k", rotary)
            k = self.named_heads(k, f"{blk}attn_k_rope")
            self.kv_cache[blk.number] = self.store_in_cache(blk, k, v, anchors)
        shared = self.kv_cache[blk.number if kv_source is None else kv_source]
        k, v = (np.repeat(each, blk.heads.group, axis=0) for each in shared)  # for each query head
        rotated = self.named_heads(normed_and_rotated(q, "q", rotary), f"{blk}attn_q_rope")
        scores: Floats = rotated @ k.transpose(0, 2, 1)  # (n_head, n_tokens, n_tokens)
        if window == 0 and model.n_ctx:
            window, near = model.n_ctx - model.sinks, np.minimum(rotary, model.n_ctx - 1)
            scores[..., : model.sinks] = normed_and_rotated(q, "q", near) @ k[:, : model.sinks].transpose(0, 2, 1)
            mask = visible(position, window, model.sinks)
        else:
            mask = visible(position, window) if self.causal else within_window(position, window)
        if not spec.causal_media:
            mask |= self.media.later_rows()
        if spec.selected and compressed is None:
            mask = mask & self.selected.repeat(blk.heads.count // len(self.selected), axis=0)
        if spec.chunked:
            mask &= position[:, None] // window == position[None, :] // window
        scores = soft_cap(factor * scores, spec.cap) + alibi(blk.heads.count, spec.max_alibi_bias, position)
        scores += self.distance_biases(spec.bias) if spec.bias else 0.0
        scores, v, mask = self.with_runs(blk, factor * rotated, compressed, spec, (scores, v, mask))
        scores = np.where(mask, scores, -np.inf)
        if spec.sinks:  # an extra column whose value is 0
            sink_scores = np.repeat(model[f"{blk}attn_sinks"][:, None], len(position), axis=1)[..., None]
            scores, v = np.concatenate([scores, sink_scores], axis=2), np.pad(v, ((0, 0), (0, 1), (0, 0)))
        weights = softmax(scores)
        self.points[f"{blk}attn_weights"] = weights[..., : len(position)]
        self.point(y := join_heads(weights @ v), f"{blk}attn_heads")
        return y

    def with_runs(
        self, blk: Block, q: Floats, compressed: Floats | None, spec: AttentionSpec, given: Visible
    ) -> Visible:
        """Return what `given` has, and the scores and the values of the compressed runs after it, if there are any."""
        if compressed is None:
            return given
        keys: Floats = compressed[None, spec.compression - 1 :: spec.compression]
        if keys.size:
            keys = self.store_in_cache(blk, keys, None, 0.0, kind="compressed_")[0]
        keys, (scores, v, mask) = np.repeat(keys, blk.heads.count, axis=0), given
        seen = self.selected[0] if spec.selected else seen_runs(self.positions, spec.compression)
        scores = np.concatenate([scores, q @ keys.transpose(0, 2, 1)], axis=2)
        return scores, np.concatenate([v, keys], axis=1), np.concatenate([mask, seen], axis=1)

    def select_positions(
        self, blk: Block, q: Floats, k: Floats, weights: Floats, spec: AttentionSpec, top_k: int  # noqa: ARG002
    ) -> None:
        self.selected = self.chosen_keys(q, k, weights, spec, top_k)

    def select_runs(
        self, blk: Block, q: Floats, k: Floats, weights: Floats | None, rope: Rope | None, runs: RunChoice  # noqa: ARG002
    ) -> None:
        chosen = self.chosen_keys(q, k, weights, AttentionSpec(rope, compression=runs.size), runs.top_k)
        chosen = np.pad(chosen, ((0, 0), (0, 0), (0, 1)))  # the last run may not be complete
        run, complete = self.positions // runs.size, (self.positions + 1) // runs.size
        self.selected = chosen[..., run] | (run >= complete[:, None])

    def chosen_keys(
        self, q: Floats, k: Floats, weights: Floats | None, spec: AttentionSpec, top_k: int
    ) -> NDArray[np.bool_]:
        """Return which keys an indexer chooses for each token, (1, n_tokens, n_keys)."""
        products, seen = self.index_products(q, k, spec)
        of_heads = np.maximum(products, 0) * (1 if weights is None else weights.T[:, :, None])
        scores = of_heads.sum(axis=0, keepdims=True)
        return largest(np.where(seen, scores, -np.inf), top_k) & seen

    def select_blocks(self, blk: Block, q: Floats, k: Floats, rope: Rope, blocks: BlockChoice) -> None:  # noqa: ARG002
        products, seen = self.index_products(q, k, AttentionSpec(rope))
        block, scores = self.positions // blocks.size, np.where(seen, products, -np.inf)
        starts = np.flatnonzero(np.diff(block, prepend=-1))
        of_blocks = np.maximum.reduceat(scores, starts, axis=2)
        back = block[:, None] - block[starts][None, :]  # from the token's own block
        of_blocks[(back >= 0) & (back < blocks.local) & (of_blocks > -np.inf)] = np.inf
        self.selected = largest(of_blocks, blocks.top_k)[..., block]

    def index_products(self, q: Floats, k: Floats, spec: AttentionSpec) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the products of an indexer's queries and keys, (heads, n_tokens, n_keys), and which keys each token
        sees: those of positions or of compressed runs."""
        coordinates, window = self.media.coordinates, self.model.n_ctx - self.model.sinks
        rope, run = spec.rope or NO_ROPE, spec.compression
        queries = rotate(split_heads(q, q.shape[1] // k.shape[1]), coordinates, rope)
        if run:
            return queries @ k[run - 1 :: run].T, seen_runs(self.positions, run)
        [keys] = rotate(split_heads(k, 1), coordinates, rope)
        return queries @ keys.T, visible(self.positions, window if self.model.n_ctx else 0, self.model.sinks)

    def rotate(self, x: Floats, heads: int, rope: Rope) -> None:
        numbers = np.arange(len(x)) - rope.offset
        before = self.media.coordinates[np.maximum(numbers, 0)] + np.minimum(numbers, 0)[:, None]
        x[:] = join_heads(rotate(split_heads(x, heads), before + rope.offset, rope))

    def distance_biases(self, name: str) -> Floats:
        """Return what is added to the score of each query and key, (heads, n_tokens, n_tokens), by their distance."""
        weights, ahead = self.model[name], self.positions[None, :] - self.positions[:, None]
        return weights[relative_buckets(ahead, len(weights), causal=self.causal)].transpose(2, 0, 1)

    def named_heads(self, heads: Floats, name: str) -> Floats:
        """Name a point, and return its activations, (heads, n_tokens, size)."""
        self.point(x := join_heads(heads), name)
        return split_heads(x, len(heads))

    def store_in_cache(
        self, blk: Block, k: Floats, v: Floats | None, anchors: Floats | float, kind: str = ""  # noqa: ARG002
    ) -> tuple[Floats, Floats]:
        """Return keys and values (heads, n_tokens, size) as the cache returns them. Without v, the values are the last
        dimensions of the keys. `kind` is "cross_" for those of cross-attention."""
        k = self.model.store_in_cache(k, anchors)
        if v is None:
            return k, k[..., -blk.heads.value :]
        return k, self.model.store_in_cache(split_heads(v, blk.heads.count_kv))


class NumpyCrossAttention(CrossAttentionOperations[Floats]):
    """Keeps the keys and values of the encoder's output, and attends to them."""

    def __init__(self, g: NumpyBuilder) -> None:
        self.g = g
        self.kv_cache: dict[int, tuple[Floats, Floats]] = {}  # keys and values of each layer of the decoder

    def begin_decoder(self, encoded: Floats) -> None:
        for number, heads in enumerate(self.g.properties.heads_of(DECODER)):
            blk = Block(number, heads, DECODER)
            k = self.g.matmul(encoded, f"{blk}cross_attn_k", heads.count_kv * heads.key)
            v = self.g.matmul(encoded, f"{blk}cross_attn_v", heads.count_kv * heads.value)
            keys = split_heads(k, heads.count_kv)
            self.kv_cache[number] = self.g.store_in_cache(blk, keys, v, 0.0, kind="cross_")
        self.g.is_encoding = False
        self.g.set_tokens(self.g.decoder_tokens, causal=True)

    def attend(self, blk: Block, q: Floats) -> Floats:
        k, v = (each.repeat(blk.heads.group, axis=0) for each in self.kv_cache[blk.number])
        weights = softmax(split_heads(q, blk.heads.count) @ k.transpose(0, 2, 1))
        self.g.point(y := join_heads(weights @ v), f"{blk}cross_attn_heads")
        return y


class NumpyOutput(OutputOperations[Floats]):
    """What follows the last layer."""

    def __init__(self, g: NumpyBuilder) -> None:
        self.g, self.model = g, g.model
        self.scale, self.cap = 1.0, 0.0  # of the logits

    def final_states(self, x: Floats, norm: str = "") -> Floats:
        self.final = self.g.norm(x, norm) if norm else x
        if norm and norm != "output_norm":
            self.g.point(self.final, "output_norm")
        return self.final

    def logits(self, x: Floats, *, scale: float = 1.0, cap: float = 0.0, norm: str = "output_norm") -> None:
        self.final = self.final_states(x, norm)
        self.scale, self.cap = scale, cap

    def compute_logits(self) -> Floats:
        """Return the logits of all tokens, (n_tokens, n_vocab). They are large, so they are computed on demand."""
        name = self.model.output_matrix
        return self.scaled(self.g.matmul(self.final, name, self.model.file.tensors[f"{name}.weight"].shape[0]))

    def scaled(self, logits: Floats) -> Floats:
        """Scale and cap logits in place, and return them."""
        if self.scale != 1.0 or self.cap:
            self.g.soft_cap(logits, self.scale, self.cap)
        return logits

    def add_mtp_head(self, x: Floats, apply_block: BlockFunction[Floats], spec: MtpSpec) -> None:
        self.mtp_states = compute_mtp_states(self.g, self.model, x, self.g.token_ids, apply_block, spec)


class NumpyEmbeddings(EmbeddingOperations[Floats]):
    """Rows of embedding matrices."""

    def __init__(self, g: NumpyBuilder, types: Positions) -> None:
        self.g, self.model, self.types = g, g.model, types

    def tokens(self, factor: float = 1.0) -> Floats:
        rows: Floats = self.model.rows("token_embd", self.g.token_ids).astype(self.model.dtype)
        x = (rows + self.model.changed_embeddings(self.g.token_ids)) * rows.dtype.type(np.float32(factor))
        x[self.g.media.rows] = self.g.media.slice(x.shape[1], 0) if self.g.media.rows else 0
        self.g.point(x, "enc.token_embd" if self.g.is_encoding else "token_embd")
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
        rows = self.model.rows("per_layer_token_embd", self.g.token_ids).astype(self.model.dtype)
        projected = self.g.matmul(x, "per_layer_model_proj", rows.shape[1])
        # The model divides the projection by sqrt(n_embd). The norm that follows undoes this, but for its epsilon.
        eps = self.g.eps * x.shape[1]
        self.g.norm_groups(projected, size, "per_layer_proj_norm.weight", eps=eps, out=projected)
        return (rows * math.sqrt(size) + projected) / math.sqrt(2)

    def ngrams(self, ngrams: Ngrams) -> Floats:
        ids = self.g.token_ids.copy()
        ids[self.g.media.rows] = ngrams.media
        rows = ngram_rows(ids, ngrams)
        values = self.model.rows("per_layer_token_embd", rows.ravel()).astype(self.model.dtype)
        return values.reshape(len(rows), -1)
