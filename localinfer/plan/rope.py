"""Rotary position embedding (Su et al., 2021): which pairs of a head turn, how fast, and how it is stretched for texts
that are longer than those of the first training.

A pair i of n_rot / 2 turns by base^(-2i / n_rot) radians a position. Stretching slows pairs down: all alike (linear,
Chen et al., 2023), the slow ones only (YaRN, Peng et al., 2023), or each by a factor of its own that the file holds as
a tensor (Llama 3; LongRoPE, Ding et al., 2024, with other factors for long contexts). The last two also multiply the
rotated values by an amplitude.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.ops.layout import BLOCK
from localinfer.plan.buffers import Region
from localinfer.plan.keys import Keys
from localinfer.plan.tensors import Tensors

FACTORS, FACTORS_SHORT, FACTORS_LONG = (f"rope_{kind}.weight" for kind in ("freqs", "factors_short", "factors_long"))
BASE = 10_000.0


@dataclass(frozen=True, eq=False)
class Rope:
    """The first n_rot values of a head turn in pairs: "neighbours" (0, 1), (2, 3), ..., or "halves" (0, n_rot / 2), ...

    `frequencies` are radians a position for each pair; the rotated values are multiplied by `amplitude`, those of
    queries also by what they grow with their position, if they do.
    """

    pairs: str
    frequencies: NDArray[np.float64]
    amplitude: float = 1.0
    growth: "Growth | None" = None

    @property
    def n_rot(self) -> int:
        return 2 * len(self.frequencies)


@dataclass(frozen=True)
class Growth:
    """1 + rate * ln(1 + floor((position + ahead) / original)): how much larger scores are made beyond the original
    context."""

    rate: float
    original: int
    ahead: int = 0

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        factors: NDArray[np.float64] = 1 + self.rate * np.log1p((positions + self.ahead) // self.original)
        return factors


NO_ROPE = Rope("halves", np.zeros(0))


def plain_rope(keys: Keys, pairs: str, head_size: int, usual: float) -> Rope:
    """That of layers with a sliding window, as the file says or with the `usual` base."""
    n_rot = read_n_rot(keys, head_size, "rope.dimension_count_swa")
    return Rope(pairs, plain_frequencies(keys.positive("rope.freq_base_swa", usual), n_rot))


def read_rope(
    keys: Keys, tensors: Tensors, pairs: str, head_size: int, n_ctx: int, *, truncate: bool = True,
    amplified: bool = True,
) -> Rope:  # fmt: skip
    """As the file stretches it, for a context of n_ctx tokens. Where the file knows how much of YaRN's amplitude is for
    something else, what turns is not `amplified`, or less."""
    n_rot = read_n_rot(keys, head_size)
    base = keys.positive("rope.freq_base", BASE)
    kind = keys.text("rope.scaling.type", "none")
    stretch = keys.positive("rope.scaling.factor", 1.0)
    original = keys.count("rope.scaling.original_context_length", keys.count("context_length"))
    frequencies, amplitude = plain_frequencies(base, n_rot), keys.positive("rope.scaling.attn_factor", 1.0)
    if kind == "linear":
        frequencies = frequencies / stretch
    elif kind == "yarn":
        fast = keys.positive("rope.scaling.yarn_beta_fast", 32.0)
        slow = keys.positive("rope.scaling.yarn_beta_slow", 1.0)
        if base <= 1:
            raise keys.error("rope.freq_base", f"is {base}; YaRN asks for more than 1")
        frequencies = yarn_frequencies(frequencies, stretch, base, original, fast, slow, truncate=truncate)
        multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
        if amplified or not multiplier:
            amplitude *= yarn_amplitude(stretch) / yarn_amplitude(stretch, multiplier)
    elif kind not in ("none", "longrope"):
        raise keys.refuse("rope.scaling.type", repr(kind))
    factors = FACTORS_LONG if n_ctx > original else FACTORS_SHORT
    if factors in tensors.f.tensors:
        tensors.mention(FACTORS_LONG, FACTORS_SHORT)
    else:
        factors = FACTORS
    if factors in tensors.f.tensors:
        frequencies = frequencies / tensors.positive(factors, n_rot // 2)
    growth = read_growth(keys, 0.0, original)
    if growth and n_rot < head_size:  # all of a query grows: pairs that do not turn have no frequency
        if pairs != "neighbours" or amplitude != 1.0:
            raise keys.refuse("attention.temperature_scale", growth.rate)
        frequencies = np.concatenate([frequencies, np.zeros((head_size - n_rot) // 2)])
    return Rope(pairs, frequencies, amplitude, growth)


def read_growth(keys: Keys, rate: float, original: int, ahead: int = 0) -> Growth | None:
    """As the file says, or as is usual; None where queries do not grow."""
    rate = keys.number("attention.temperature_scale", rate)
    original = keys.count("attention.temperature_length", original)
    return Growth(rate, original, ahead) if rate else None


def still_rope(growth: Growth | None, head_size: int) -> Rope | None:
    """Pairs that do not turn but grow; None if they do not even that."""
    return Rope("halves", np.zeros(head_size // 2), growth=growth) if growth else None


def yarn_amplitude(stretch: float, multiplier: float = 1.0) -> float:
    """What YaRN multiplies rotated values with; a file's multiplier tells how much of that is trained into weights."""
    return 1 + 0.1 * abs(multiplier) * math.log(max(1.0, stretch))


def plain_frequencies(base: float, n_rot: int) -> NDArray[np.float64]:
    """base^(-2i / n_rot)"""
    return base ** (-2.0 * np.arange(n_rot // 2, dtype=np.float64) / n_rot)


def yarn_frequencies(
    plain: NDArray[np.float64],
    stretch: float,
    base: float,
    original: int,
    fast: float,
    slow: float,
    *,
    truncate: bool,
) -> NDArray[np.float64]:
    """Pairs that turn more than `fast` times in the original context stay as they are, those that turn less than
    `slow` times are slowed by the stretch; between them there is a ramp, from one whole pair to another if they are to
    `truncate` it."""
    first, last = (len(plain) * math.log(original / (turns * 2 * math.pi)) / math.log(base) for turns in (fast, slow))
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(0, first), min(2 * len(plain) - 1, last)
    ramp = np.clip((np.arange(len(plain)) - first) / max(0.001, last - first), 0, 1)
    mixed: NDArray[np.float64] = plain / stretch * ramp + plain * (1 - ramp)
    return mixed


def read_n_rot(keys: Keys, head_size: int, own: str = "") -> int:
    """How many values of a head turn: as its `own` key says, if it has one and the file has that."""
    key = own if own and keys.has(own) else "rope.dimension_count"
    n_rot = keys.count(key, head_size)
    if n_rot % 2 or n_rot > head_size:
        what = f"is {n_rot}; it must be even and at most {head_size}, the length of a head"
        raise keys.error(key, what)
    return n_rot


class Angles:
    """Cosines and sines of position times frequency: a row a position, float32 [cos of all pairs, sin of all pairs].

    They are computed in double precision, for a stretch of positions at a time, and kept for some time: decoding asks
    one by one, and every new conversation begins where the last one did.
    """

    STRETCH, KEPT = 256, 64

    def __init__(self, rope: Rope, *, grow: bool = False) -> None:
        self._rope = rope
        self._growth = rope.growth if grow else None
        self._stretches: dict[int, NDArray[np.float32]] = {}  # by their numbers; the oldest first

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """The rows of some positions."""
        numbers, within = np.divmod(positions, self.STRETCH)
        rows = np.empty((len(positions), self._rope.n_rot), np.float32)
        for number in dict.fromkeys(numbers.tolist()):
            here = numbers == number
            rows[here] = self._stretch(number)[within[here]]
        return rows

    def one(self, position: int) -> NDArray[np.float32]:
        """The row of one position."""
        number, within = divmod(position, self.STRETCH)
        row: NDArray[np.float32] = self._stretch(number)[within]
        return row

    def _stretch(self, number: int) -> NDArray[np.float32]:
        if number not in self._stretches:
            if len(self._stretches) == self.KEPT:
                del self._stretches[next(iter(self._stretches))]
            self._stretches[number] = self._computed(np.arange(number * self.STRETCH, (number + 1) * self.STRETCH))
        return self._stretches[number]

    def _computed(self, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        angles = positions[:, None] * self._rope.frequencies[None, :]
        amplitude = self._rope.amplitude * (self._growth.at(positions)[:, None] if self._growth else 1.0)
        return (amplitude * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)).astype(np.float32)


@dataclass(eq=False)
class RopeTable:
    """The angles of a batch, filled in before each run: `rows`, and for queries that meet sinks those of `sinks`."""

    rope: Rope
    angles: Angles
    rows: Region
    sinks: Region | None

    def fill(self, positions: NDArray[np.int64], n_ctx: int) -> None:
        """For tokens at these positions; sinks are looked at from no further than n_ctx."""
        size = len(positions) * self.rope.n_rot
        if len(positions) == 1:
            self.rows.view(np.float32)[:size] = self.angles.one(int(positions[0]))
        else:
            self.rows.view(np.float32)[:size] = self.angles.at(positions).ravel()
        if self.sinks:
            near = np.minimum(positions, n_ctx - 1)
            self.sinks.view(np.float32)[:size] = self.angles.at(near).ravel()


@dataclass(eq=False)
class BlockTable:
    """How the blocks of cells that a batch's tokens lie in are turned on average, filled in before each run: the mean
    of the angles' rows of 64 neighbouring positions. Blocks begin at position 0 and, behind `sinks`, anew."""

    rope: Rope
    sinks: int
    rows: Region

    def fill(self, positions: NDArray[np.int64]) -> None:
        """For tokens at these positions."""
        begin = np.where(positions < self.sinks, 0, self.sinks)
        blocks, numbers = np.unique(positions - (positions - begin) % BLOCK, return_inverse=True)
        self.rows.view(np.float32)[: len(positions) * self.rope.n_rot] = self.at(blocks)[numbers].ravel()

    def at(self, first: NDArray[np.int64]) -> NDArray[np.float32]:
        """The rows of blocks that begin at these positions. The mean of neighbouring turns is the middle one, and the
        faster they turn, the shorter it is (Dirichlet's kernel)."""
        frequencies = self.rope.frequencies
        half = np.sin(frequencies / 2)
        turning = np.abs(half) > 1e-12
        lengths = np.where(turning, np.sin(BLOCK * frequencies / 2) / (BLOCK * np.where(turning, half, 1)), 1)
        angles = (first[:, None] + (BLOCK - 1) / 2) * frequencies
        parts = (self.rope.amplitude * lengths * part for part in (np.cos(angles), np.sin(angles)))
        return np.concatenate([*parts], axis=1).astype(np.float32)
