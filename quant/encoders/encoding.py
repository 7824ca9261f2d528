"""Words that encoders share: numbers in sixteen lanes, rounding, scales in half precision."""

from typing import Any

from numba import float32, int32

from quant.encoders.encode import GROUPS
from quant.jit.vectors import (
    absolute,
    bitcast,
    convert,
    f16x16,
    f32x16,
    floor,
    half,
    i32x16,
    inline,
    lanes,
    maximum,
    minimum,
    select,
    splat,
    store_half,
)

LARGEST_HALF = float32(65504.0)
HUGE = 3e38  # more than any error in units

# --- numbers ------------------------------------------------------------------------------------------------------


@inline
def every(value: float) -> Any:
    """A number in every lane."""
    return splat(f32x16, float32(value))


@inline
def inverses(v: Any) -> Any:
    """1 / v; 0 where there is none."""
    none = v == every(0.0)
    return select(none, v, every(1.0) / select(none, every(1.0), v))


@inline
def inverse_of(scale: float) -> Any:
    """1 / scale; 0 where there is none."""
    return float32(0.0) if scale == float32(0.0) else float32(1.0) / scale


@inline
def rounded(v: Any) -> Any:
    """The nearest whole numbers of an f32x16, a half away from zero."""
    zero, size = every(0.0), absolute(v)
    down = floor(size)
    whole = down + floor((size - down) + (size - down))
    return select(v < zero, zero - whole, whole)


@inline
def units(v: Any) -> Any:
    """The power of two below each of some sizes, and one over it, both exact and finite.

    Searched in such units, numbers of any size can be squared and added up.
    """
    exponent = (bitcast(i32x16, v) >> splat(i32x16, int32(23))) & splat(i32x16, int32(255))
    least, most = splat(i32x16, int32(1)), splat(i32x16, int32(253))
    exponent = select(exponent < least, least, select(exponent > most, most, exponent))
    shift = splat(i32x16, int32(23))
    return bitcast(f32x16, exponent << shift), bitcast(f32x16, (splat(i32x16, int32(254)) - exponent) << shift)


def fold_word(neighbours: int) -> tuple[Any, Any]:
    """The words sum_of(v) and largest_of(v) of every 1, 8 or 16 lanes, in all of them; added in a fixed order."""
    swap1, swap2, swap4, swap8 = (lanes([lane ^ distance for lane in range(GROUPS)]) for distance in (1, 2, 4, 8))

    @inline
    def same(v: Any) -> Any:
        return v

    @inline
    def sum_of(v: Any) -> Any:
        v = v + swap1(v)
        v = v + swap2(v)
        v = v + swap4(v)
        return v + swap8(v) if neighbours == 16 else v

    @inline
    def largest_of(v: Any) -> Any:
        v = maximum(v, swap1(v))
        v = maximum(v, swap2(v))
        v = maximum(v, swap4(v))
        return maximum(v, swap8(v)) if neighbours == 16 else v

    return (same, same) if neighbours == 1 else (sum_of, largest_of)


# --- scales in half precision -------------------------------------------------------------------------------------


@inline
def put_scale(address: int, scale: float) -> Any:
    """Store a scale in half precision, at most the largest finite one; returns what a reader will see."""
    store_half(address, max(min(scale, LARGEST_HALF), -LARGEST_HALF))
    return half(address)


@inline
def as_stored(v: Any, unit: Any, inverse: Any) -> Any:
    """Scales, given in units, as a reader will see them: in half precision, at most the largest finite one."""
    largest = splat(f32x16, LARGEST_HALF)
    clipped = minimum(maximum(v * unit, splat(f32x16, -LARGEST_HALF)), largest)
    return convert(f32x16, convert(f16x16, clipped)) * inverse
