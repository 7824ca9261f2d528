"""Rotary position embedding (Su et al., 2021) and its extensions to longer contexts.

A pair i of n_rot / 2 rotates by base^(-2i / n_rot) radians per position. Context extension slows the rotation: of all
pairs alike (linear; Chen et al., 2023), of the slow pairs only (YaRN; Peng et al., 2023), or of each pair by its own
factor from the file (Llama 3; LongRoPE, Ding et al., 2024, with other factors for long contexts). The last two also
multiply the rotated values by an amplitude.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.properties.tensors import Tensors

SECTIONS_KEY = "rope.dimension_sections"
FACTORS, FACTORS_SHORT, FACTORS_LONG = (f"rope_{kind}.weight" for kind in ("freqs", "factors_short", "factors_long"))
BASE = 10_000.0


@dataclass(frozen=True, eq=False)
class Rope:
    """The first n_rot values of a head are rotated in pairs: "interleaved" (0, 1), (2, 3), ..., "halves" (0, n_rot /
    2), ..., "quarters" (0, n_rot / 4), ..., (n_rot / 2, 3 n_rot / 4), ..., or "sixths" (0, n_rot / 6), ...,
    (n_rot / 3, n_rot / 2), ...

    `frequencies` are radians per position for each pair. Rotated values are multiplied by `amplitude`, those of queries
    also by their `temperature`. With `axes` (M-RoPE; Wang et al., 2024), each pair rotates by one of a position's
    coordinates: 0 temporal, 1 vertical, 2 horizontal; or, with XD-RoPE, 1 column, 2 row, 3 number of the image. They
    are equal for text. The rotation is that of the position `offset` before.
    """

    pairs: str
    frequencies: NDArray[np.float64]
    amplitude: float = 1.0
    temperature: "AttentionTemperature | None" = None
    axes: NDArray[np.int8] | None = None
    offset: int = 0

    @property
    def n_rot(self) -> int:
        return 2 * len(self.frequencies)


class AttentionTemperature(NamedTuple):
    """The factor 1 + rate * ln(1 + floor((position + offset) / original)), by which queries are scaled beyond the
    original context (Llama 4; Meta, 2025)."""

    rate: float
    original: int
    offset: int = 0

    def scale_at(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the factor at each position."""
        factors: NDArray[np.float64] = 1 + self.rate * np.log1p((positions + self.offset) // self.original)
        return factors


NO_ROPE = Rope("halves", np.zeros(0))


def plain_rope(hparams: Hyperparameters, pairs: str, head_size: int, default_base: float, size: str) -> Rope:
    """Return the rotary embedding of sliding-window layers, with the file's base or the default one. The key `size` has
    the number of rotated values."""
    n_rot = read_n_rot(hparams, head_size, size)
    return Rope(pairs, plain_frequencies(hparams.positive("rope.freq_base_swa", default_base), n_rot))


def read_rope(
    hparams: Hyperparameters, tensors: Tensors, pairs: str, head_size: int, n_ctx: int, *, truncate: bool = True,
    amplified: bool = True, base_key: str = "rope.freq_base",
) -> Rope:  # fmt: skip
    """Return the rotary embedding of the file, extended for a context of n_ctx tokens, with the base of a key.

    YaRN's extrapolation factor mixes its frequencies with those that are all slowed alike: 1 with the scaling type
    yarn, else 0, unless the file has it.
    Unless `amplified`, the scale of the scores includes YaRN's amplitude if the file has a yarn_log_multiplier.
    """
    n_rot = read_n_rot(hparams, head_size)
    base = hparams.positive(base_key, BASE)
    kind = hparams.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise hparams.unsupported("rope.scaling.type", repr(kind))
    factor = hparams.positive("rope.scaling.factor", hparams.positive("rope.scale_linear", 1.0))
    if kind == "none":
        factor = 1.0
    extrapolation = hparams.number("rope.scaling.yarn_ext_factor", float(kind == "yarn"))
    original = hparams.count("rope.scaling.original_context_length", hparams.count("context_length"))
    frequencies, amplitude = plain_frequencies(base, n_rot), hparams.positive("rope.scaling.attn_factor", 1.0)
    slowed = frequencies / factor
    if extrapolation:
        fast = hparams.positive("rope.scaling.yarn_beta_fast", 32.0)
        slow = hparams.positive("rope.scaling.yarn_beta_slow", 1.0)
        if base <= 1:
            raise hparams.error(base_key, f"is {base}; YaRN needs more than 1")
        mixed = yarn_frequencies(frequencies, factor, base, original, fast, slow, truncate=truncate)
        frequencies = extrapolation * mixed + (1 - extrapolation) * slowed
        multiplier = hparams.number("rope.scaling.yarn_log_multiplier", 0.0)
        if amplified or not multiplier:
            amplitude *= yarn_amplitude(factor) / yarn_amplitude(factor, multiplier)
    else:
        frequencies = slowed
    factors = FACTORS_LONG if n_ctx > original else FACTORS_SHORT
    if factors in tensors.f.tensors:
        tensors.accept(FACTORS_LONG, FACTORS_SHORT)
    else:
        factors = FACTORS
    if factors in tensors.f.tensors:
        frequencies = frequencies / tensors.positive_vector(factors, n_rot // 2)
    temperature = read_temperature(hparams, 0.0, original)
    if temperature and n_rot < head_size:  # all of a query is scaled: unrotated pairs get frequency 0
        if pairs != "interleaved" or amplitude != 1.0:
            raise hparams.unsupported("attention.temperature_scale", temperature.rate)
        frequencies = np.concatenate([frequencies, np.zeros((head_size - n_rot) // 2)])
    return Rope(pairs, frequencies, amplitude, temperature)


def read_temperature(
    hparams: Hyperparameters, rate: float, original: int, offset: int = 0
) -> AttentionTemperature | None:
    """Return the attention temperature of the file, or the default one; None if queries are not scaled."""
    rate = hparams.number("attention.temperature_scale", rate)
    original = hparams.count("attention.temperature_length", original)
    return AttentionTemperature(rate, original, offset) if rate else None


def temperature_only_rope(temperature: AttentionTemperature | None, head_size: int) -> Rope | None:
    """Return a rotary embedding that only scales queries; None without a temperature."""
    return Rope("halves", np.zeros(head_size // 2), temperature=temperature) if temperature else None


def yarn_amplitude(factor: float, multiplier: float = 1.0) -> float:
    """Return YaRN's attention factor, 1 + 0.1 * multiplier * ln(factor)."""
    return 1 + 0.1 * abs(multiplier) * math.log(max(1.0, factor))


def plain_frequencies(base: float, n_rot: int) -> NDArray[np.float64]:
    """Return base^(-2i / n_rot) for each pair i."""
    return base ** (-2.0 * np.arange(n_rot // 2, dtype=np.float64) / n_rot)


def yarn_frequencies(
    plain: NDArray[np.float64],
    factor: float,
    base: float,
    original: int,
    fast: float,
    slow: float,
    *,
    truncate: bool,
) -> NDArray[np.float64]:
    """Return YaRN's frequencies.

    Pairs that rotate more than `fast` times within the original context keep their frequency; those that rotate less
    than `slow` times are slowed by `factor`. In between is a linear ramp, whose ends `truncate` rounds to
    whole pairs.
    """
    first, last = (len(plain) * math.log(original / (count * 2 * math.pi)) / math.log(base) for count in (fast, slow))
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(0, first), min(2 * len(plain) - 1, last)
    ramp = np.clip((np.arange(len(plain)) - first) / max(0.001, last - first), 0, 1)
    mixed: NDArray[np.float64] = plain / factor * ramp + plain * (1 - ramp)
    return mixed


def read_axes(hparams: Hyperparameters, n_pairs: int, *, interleaved: bool = False, count: int = 3) -> NDArray[np.int8]:
    """Return which of `count` coordinates each pair rotates by (M-RoPE), from the numbers of pairs in the file.

    The sections follow each other, or are `interleaved`: 0 1 2 0 1 2 ..., until each has its number of pairs; the rest
    is temporal.
    """
    sections = hparams.counts(SECTIONS_KEY, 4, minimum=0)
    if sum(sections) != n_pairs or any(sections[count:]):
        what = f"is {sections}; there must be {count} sections with {n_pairs} pairs in total"
        raise hparams.error(SECTIONS_KEY, what)
    axes = np.repeat(np.arange(4, dtype=np.int8), sections)
    if interleaved:
        axes[:] = 0
        for axis in (1, 2):
            axes[axis : 3 * sections[axis] : 3] = axis
    return axes


def read_n_rot(hparams: Hyperparameters, head_size: int, specific_key: str = "") -> int:
    """Return the number of rotated values of a head, from `specific_key` if the file has it."""
    key = specific_key if specific_key and hparams.has(specific_key) else "rope.dimension_count"
    n_rot = hparams.count(key, head_size)
    if n_rot % 2 or n_rot > head_size:
        what = f"is {n_rot}; it must be even and at most {head_size}, the length of a head"
        raise hparams.error(key, what)
    return n_rot
