"""Attention composed of a builder's operations: queries, keys and values, rotary embeddings and sliding windows."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from localinfer.graph.builder import AttentionSpec, Block, Builder, PerLayer, Rope, X
from localinfer.graph.properties.latent_attention import LatentShape
from localinfer.graph.properties.mtp import WINDOWS, mtp_entry
from localinfer.graph.properties.rope import (
    BASE,
    FACTORS,
    SECTIONS_KEY,
    plain_frequencies,
    plain_rope,
    read_axes,
    read_temperature,
    temperature_only_rope,
)
from localinfer.graph.properties.sliding_window import read_kv_source_layers, read_sliding_layers, read_sliding_window

MAX_ALIBI_BIAS = 64  # of the head with the smallest slope, whose scores then hardly decrease


def qkv(g: Builder[X], h: X, blk: Block, *, bias: bool = False) -> Sequence[X]:
    """Return queries, keys and values, [token][head][value], from three matrices, from a fused one, or from latent
    vectors. With `bias`, each matrix must have one. The file may limit their magnitudes."""
    if g.tensors.has(f"{blk}attn_kv_b.weight"):
        return latent_qkv(g, h, blk)
    if bias:
        g.tensors.require_bias("attn_q", "attn_k", "attn_v", "attn_qkv")
    heads = blk.heads
    q, k, v = heads.count * heads.key, heads.count_kv * heads.key, heads.count_kv * heads.value
    products: Sequence[X]
    if g.tensors.has(f"{blk}attn_qkv.weight"):
        products = g.slices(h, f"{blk}attn_qkv", q, k, v)
        for name, x in zip("qkv", products, strict=True):
            g.point(x, f"{blk}attn_{name}")
    else:
        products = g.matmuls(h, (f"{blk}attn_q", q), (f"{blk}attn_k", k), (f"{blk}attn_v", v))
    if g.hparams.number("attention.clamp_kqv", 0.0):
        for x in products:
            g.clip(x, g.hparams.positive("attention.clamp_kqv"))
    return products


def latent_qkv(g: Builder[X], h: X, blk: Block) -> tuple[X, X, X]:
    """Return the queries, keys and values of multi-head latent attention (DeepSeek-V2, 2024), from one matrix
    `attn_kv_b` for the keys and values of all heads. The rotated values of a head come first; those of keys are the
    same for all heads."""
    n, value, rope = blk.heads.count, blk.heads.value, g.hparams.count("rope.dimension_count", maximum=blk.heads.key)
    nope, rank = blk.heads.key - rope, g.hparams.count("attention.kv_lora_rank")
    q_nope, q_rope = latent_queries(g, h, blk, nope, rope)
    latent, k_rope = g.slices(h, f"{blk}attn_kv_a_mqa", rank, rope)
    latent = g.norm(latent, f"{blk}attn_kv_a_norm")
    k_nope, v = g.per_head.split(g.matmul(latent, f"{blk}attn_kv_b", n * (nope + value)), n, nope, value)
    k = g.per_head.join(n, g.per_head.repeat(k_rope, n), k_nope)
    g.point(k, f"{blk}attn_k")
    g.point(v, f"{blk}attn_v")
    return g.per_head.join(n, q_rope, q_nope), k, v


def latent_attention(
    g: Builder[X], h: X, blk: Block, shape: LatentShape, spec: AttentionSpec, select: Callable[[X], None] | None = None
) -> X:
    """Return the output of the heads of multi-head latent attention, whose keys and values stay latent vectors, from a
    matrix for each head, `attn_k_b` and `attn_v_b`. The file may have a norm of the rotated values of keys. With
    `spec.selected`, `select` may choose positions, from the input of the queries."""
    n, narrow = blk.heads.count, narrow_queries(g, h, blk)
    if select:
        select(narrow)
    q, k = latent_heads(g, h, narrow, blk, shape)
    y = g.attend(blk, q, k, None, spec)  # the values are the latent part of the keys
    return g.per_head.matmul(y, f"{blk}attn_v_b", n, shape.value_dim)


def latent_heads(g: Builder[X], h: X, narrow: X, blk: Block, shape: LatentShape) -> tuple[X, X]:
    """Return the queries and the key of latent attention, whose rotated values come first, if there are any."""
    n, q_name, k_name, norm = blk.heads.count, f"{blk}attn_k_b", f"{blk}attn_kv_a_mqa", f"{blk}attn_kv_a_norm"
    if not shape.rope_dim:
        [q] = split_queries(g, narrow, blk, shape.nope_dim)
        return g.per_head.matmul(q, q_name, n, shape.rank), g.norm(g.matmul(h, k_name, shape.rank), norm)
    q, q_rope = split_queries(g, narrow, blk, shape.nope_dim, shape.rope_dim)
    latent, k_rope = g.slices(h, k_name, shape.rank, shape.rope_dim)
    if g.tensors.has(f"{blk}attn_k_norm.weight"):
        k_rope = g.norm(k_rope, f"{blk}attn_k_norm")
    q = g.per_head.join(n, q_rope, g.per_head.matmul(q, q_name, n, shape.rank))
    return q, g.per_head.join(1, k_rope, g.norm(latent, norm))


def latent_queries(g: Builder[X], h: X, blk: Block, nope: int, rope: int) -> Sequence[X]:
    """Return the `nope` values of each query head that are not rotated, and the `rope` values that are."""
    return split_queries(g, narrow_queries(g, h, blk), blk, nope, rope)


def narrow_queries(g: Builder[X], h: X, blk: Block) -> X:
    """Return the input of the matrix of queries: h, or a vector of low rank in large models, which compress queries."""
    if not g.tensors.has(f"{blk}attn_q_a.weight"):
        return h
    return g.norm(g.matmul(h, f"{blk}attn_q_a", g.hparams.count("attention.q_lora_rank")), f"{blk}attn_q_a_norm")


def split_queries(g: Builder[X], x: X, blk: Block, *sizes: int) -> Sequence[X]:
    """Return parts of query heads of these sizes, from the input of their matrix."""
    n, name = blk.heads.count, f"{blk}attn_q_b" if g.tensors.has(f"{blk}attn_q_a.weight") else f"{blk}attn_q"
    q = g.matmul(x, name, n * sum(sizes))
    return g.per_head.split(q, n, *sizes) if len(sizes) > 1 else [q]


def mrope(g: Builder[X], *, interleaved: bool = False) -> Rope:
    """Return the rotary embedding of the file, whose pairs rotate by one of three coordinates (M-RoPE)."""
    rope = g.rope("halves")
    return replace(rope, axes=read_axes(g.hparams, len(rope.frequencies), interleaved=interleaved))


def rope_of_file(g: Builder[X], pairs: str) -> Rope:
    """Return the rotary embedding of the file: M-RoPE if it has sections, as text models of vision models have it."""
    return mrope(g) if g.hparams.has(SECTIONS_KEY) else g.rope(pairs)


def rope_before_norms(g: Builder[X], pairs: str) -> Rope:
    """Return the rotary embedding of the file for heads that are normalized after it, so that its amplitude has no
    effect."""
    return replace(g.rope(pairs), amplitude=1.0)


def half_rope(g: Builder[X], pairs: str) -> Rope:
    """Return a rotary embedding of the first half of each head, where files state whole heads. Factors of pairs, if the
    file has them, are those of whole heads, too."""
    size = g.hparams.count("rope.dimension_count", g.properties.key_length(sliding=False))
    frequencies = plain_frequencies(g.hparams.positive("rope.freq_base", BASE), size // 2)
    if g.tensors.has(FACTORS):
        frequencies = frequencies / g.tensors.positive_vector(FACTORS, size // 2)[: len(frequencies)]
    return Rope(pairs, frequencies)


def whole_rope(g: Builder[X], pairs: str) -> Rope:
    """Return a rotary embedding of whole heads without context extension, for files in which the number of rotated
    values may be 0, which stands for all."""
    size, key = g.properties.key_length(sliding=False), "rope.dimension_count"
    n_rot = g.hparams.count(key, 0, minimum=0)
    if n_rot not in (0, size) or size % 2:
        raise g.hparams.error(key, f"is {n_rot}; it must be 0 or {size}, the length of a head, which must be even")
    return Rope(pairs, plain_frequencies(g.hparams.positive("rope.freq_base", BASE), size))


def xd_rope(g: Builder[X]) -> Rope:
    """Return the rotary embedding of the file, whose pairs rotate by one of four coordinates (XD-RoPE). Its base is
    raised by the power of a factor, which is 1 if the file has none."""
    rope, alpha = g.rope("halves"), g.hparams.positive("rope.scaling.alpha", 1.0)
    pairs = np.arange(len(rope.frequencies))
    slower = rope.frequencies * alpha ** (-2.0 * pairs / max(1, rope.n_rot - 2))
    axes = read_axes(g.hparams, len(pairs), count=4) if g.hparams.has(SECTIONS_KEY) else None
    return replace(rope, frequencies=slower, axes=axes)


def rope_swa(g: Builder[X], pairs: str, base: str = "", size: str = "rope.dimension_count_swa") -> Rope:
    """Return the rotary embedding of sliding-window layers, which has no context extension. Its default base is the
    value of the key `base`, if one is given; the key `size` has the number of rotated values."""
    default_base = g.hparams.positive(base, BASE) if base else BASE
    return plain_rope(g.hparams, pairs, g.properties.key_length(sliding=True), default_base, size)


def temperature_rope(g: Builder[X], rate: float, original: int, *, offset: int = 0) -> Rope | None:
    """Return a rotary embedding that rotates nothing but scales queries by their attention temperature. The arguments
    are defaults for the metadata. See `AttentionTemperature`."""
    temperature = read_temperature(g.hparams, rate, original, offset)
    return temperature_only_rope(temperature, g.properties.key_length(sliding=False))


def alibi(g: Builder[X], default: float) -> AttentionSpec:
    """Return attention without rotary embeddings, whose scores decrease with the distance: as the file specifies, or as
    the default does. With 0, they do not."""
    bias = g.hparams.number("attention.max_alibi_bias", default)
    if not 0 <= bias <= MAX_ALIBI_BIAS:
        raise g.hparams.error("attention.max_alibi_bias", f"is {bias:g}; it must be 0 to {MAX_ALIBI_BIAS}")
    return AttentionSpec(None, max_alibi_bias=bias)


def sliding_window(g: Builder[X], default: int = 0) -> int:
    """Return the sliding window in tokens, 0 if there is none."""
    return read_sliding_window(g.hparams, default)


def sliding_layers(
    g: Builder[X], pattern: int, default_window: int = 0, *, first: bool = False, mtp: bool | None = None
) -> PerLayer[bool]:
    """Return for each layer whether it has a sliding window: as the file specifies, or all but the last (or the
    `first`) of every `pattern` layers. Without a window, no layer has one. MTP layers have one if the file states it,
    or else if `mtp`."""
    sliding = read_sliding_layers(g.hparams, g.block_count, pattern, default_window=default_window, first=first)
    of_file = mtp_entry(g.hparams, WINDOWS, g.block_count)
    return PerLayer(sliding, mtp if of_file is None else bool(of_file))


def with_window(g: Builder[X], spec: AttentionSpec) -> PerLayer[AttentionSpec]:
    """Return the attention of each layer: with the file's sliding window, if it has one, in the layers that the file
    specifies, or else in all."""
    window, given = sliding_window(g), g.hparams.has(WINDOWS)
    sliding = sliding_layers(g, 0) if given else PerLayer([window > 0] * g.block_count)
    return sliding.choose(replace(spec, window=window), spec)


def local_rope(g: Builder[X], spec: AttentionSpec, pattern: int, *, first: bool = False) -> PerLayer[AttentionSpec]:
    """Return the attention of each layer: `spec` with the file's sliding window in all but the last (or the `first`) of
    every `pattern` layers, or as the file specifies, and `spec` without its rotary embedding in the others. Without a
    window, all layers have `spec`."""
    window = sliding_window(g)
    local, full = replace(spec, window=window), replace(spec, rope=None) if window else spec
    return sliding_layers(g, pattern, first=first).choose(local, full)


def unscaled_attention(g: Builder[X]) -> PerLayer[AttentionSpec]:
    """Return the attention of each layer of Gemma 4, whose scores are not scaled: with a window and its own rotary
    embedding where the file says so. Rows of an image attend to later ones in sliding-window layers only."""
    full = AttentionSpec(g.rope("halves"), head_norm="before_rope", scale=1.0, causal_media=True)
    local = replace(full, rope=rope_swa(g, "halves"), window=sliding_window(g), causal_media=False)
    return sliding_layers(g, 0).choose(local, full)


def kv_source_layers(g: Builder[X]) -> PerLayer[int]:
    """Return the layer whose keys and values each layer uses."""
    return PerLayer(read_kv_source_layers(g.hparams, g.block_count, sliding_layers(g, 0).values))
