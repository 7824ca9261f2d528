"""Inlined functions for all encoders: vectors of sixteen float32, rounding, and scales in half precision."""

from typing import Any

from numba import float32, int32

from quant.encoders.encoder import GROUPS
from quant.jit.vectors import (
    absolute,
    bitcast,
    convert,
    f16x16,
    f32x16,
    floor,
    i32x16,
    inline,
    load_half,
    make_shuffle,
    maximum,
    minimum,
    select,
    splat,
    store_half,
)

LARGEST_HALF = float32(65504.0)
HUGE = 3e38  # larger than any error measured in units

# --- numbers ------------------------------------------------------------------------------------------------------


@inline
def broadcast(value: float) -> Any:
    """Return a vector with the number in every lane."""
    return splat(f32x16, float32(value))


@inline
def safe_reciprocals(v: Any) -> Any:
    """Return 1 / v lane by lane, and 0 where v is 0."""
    none = v == broadcast(0.0)
    return select(none, v, broadcast(1.0) / select(none, broadcast(1.0), v))


@inline
def safe_reciprocal(scale: float) -> Any:
    """Return 1 / scale, or 0 if the scale is 0."""
    return float32(0.0) if scale == float32(0.0) else float32(1.0) / scale


@inline
def round_half_away(v: Any) -> Any:
    """Round an f32x16 to the nearest integers; halves are rounded away from zero."""
    zero, size = broadcast(0.0), absolute(v)
    down = floor(size)
    whole = down + floor((size - down) + (size - down))
    return select(v < zero, zero - whole, whole)


@inline
def power_of_two_units(v: Any) -> Any:
    """Return, lane by lane, the largest power of two not above v, and its reciprocal. Both are exact and finite.

    In these units, numbers of any magnitude can be squared and added without overflow.
    """
    exponent = (bitcast(i32x16, v) >> splat(i32x16, int32(23))) & splat(i32x16, int32(255))
    least, most = splat(i32x16, int32(1)), splat(i32x16, int32(253))
    exponent = select(exponent < least, least, select(exponent > most, most, exponent))
    shift = splat(i32x16, int32(23))
    return bitcast(f32x16, exponent << shift), bitcast(f32x16, (splat(i32x16, int32(254)) - exponent) << shift)


def make_reductions(neighbours: int) -> tuple[Any, Any]:
    """Make the inlined functions sum_of(v) and largest_of(v), which reduce every `neighbours` lanes (1, 8 or 16).

    The result is in all of these lanes. The order of the additions is fixed.
    """
    swap1, swap2, swap4, swap8 = (
        make_shuffle([lane ^ distance for lane in range(GROUPS)]) for distance in (1, 2, 4, 8)
    )

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
def store_scale(address: int, scale: float) -> Any:
    """Store a scale as float16, clamped to the finite range. Return the value that a decoder will read."""
    store_half(address, max(min(scale, LARGEST_HALF), -LARGEST_HALF))
    return load_half(address)


@inline
def round_to_f16(v: Any, unit: Any, inverse: Any) -> Any:
    """Round scales, given in `unit`, to the values that a decoder will read: float16, clamped to the finite range."""
    largest = splat(f32x16, LARGEST_HALF)
    clipped = minimum(maximum(v * unit, splat(f32x16, -LARGEST_HALF)), largest)
    return convert(f32x16, convert(f16x16, clipped)) * inverse
