"""Rotary positions of the naive forward pass: the rotation that a file describes, with its context extension."""

import math
from typing import NamedTuple

import numpy as np

from localinfer.graph.builder import Block
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.properties.rope import AttentionTemperature, Rope
from localinfer.naive.formulas import Floats, Positions, plain_frequencies, rotate, split_heads, yarn_frequencies
from localinfer.naive.weights import Model

PAGE = 64  # positions that share an anchor


class RopeOptions(NamedTuple):
    """Arguments of `Builder.rope`."""

    truncate: bool
    amplified: bool
    with_temperature: bool
    base: str


def rope_of_file(model: Model, keys: Hyperparameters, pairs: str, key_length: int, options: RopeOptions) -> Rope:
    """Return the rotary embedding of a file (Su et al., 2021), extended linearly, by YaRN (Peng et al., 2023) or by
    factors in the file, as its metadata says."""
    n = keys.count("rope.dimension_count", key_length)
    base, kind = keys.positive(options.base, 10_000.0), keys.text("rope.scaling.type", "linear")
    factor_key = "rope.scaling.factor" if keys.has("rope.scaling.factor") else "rope.scale_linear"
    scaling_factor = 1.0 if kind == "none" else keys.positive(factor_key, 1.0)
    extrapolation, trained = keys.number("rope.scaling.yarn_ext_factor", kind == "yarn"), keys.count("context_length")
    original = keys.count("rope.scaling.original_context_length", trained)
    frequencies, amplitude = plain_frequencies(base, n), keys.positive("rope.scaling.attn_factor", 1.0)
    slowed = frequencies / scaling_factor
    if extrapolation:
        fast, slow = (keys.positive(f"rope.scaling.yarn_beta_{end}", n) for end, n in (("fast", 32.0), ("slow", 1)))
        mixed = yarn_frequencies(frequencies, base, scaling_factor, original, fast, slow, options.truncate)
        frequencies = extrapolation * mixed + (1 - extrapolation) * slowed
        multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
        if options.amplified or not multiplier:
            growth = 0.1 * max(0.0, math.log(scaling_factor))
            amplitude *= (1 + growth) / (1 + multiplier * growth)
    else:
        frequencies = slowed
    is_long = (model.ctx_size or trained) > original
    for name in ("rope_freqs", "rope_factors_long" if is_long else "rope_factors_short"):
        frequencies = frequencies / model.factors.get(name, 1.0)
    temperature = AttentionTemperature(
        keys.number("attention.temperature_scale", 0.0), keys.count("attention.temperature_length", original)
    )
    return Rope(pairs, frequencies.astype(np.float64), amplitude, temperature if options.with_temperature else None)


def key_anchors(model: Model, blk: Block, rope: Rope | None, positions: Positions, sinks: int) -> Floats | float:
    """Return the mean of the rotated key bias over each position's page: (heads, n_tokens, head_size), or 0 without a
    bias. Pages begin at position 0, and again after the `sinks`."""
    bias, of_all, heads = model.bias(f"{blk}attn_k"), model.bias(f"{blk}attn_qkv"), blk.heads
    if not isinstance(of_all, float):
        bias = of_all[heads.count * heads.key :][: heads.count_kv * heads.key]
    if isinstance(bias, float):
        return 0.0
    begin = np.where(positions < sinks, 0, sinks)
    first = positions - (positions - begin) % PAGE
    biases = split_heads(np.tile(bias, (len(first), 1)), heads.count_kv)
    near = (biases if rope is None else rotate(biases, first + entry, rope) for entry in range(PAGE))
    return sum(near, np.zeros_like(biases)) / PAGE
