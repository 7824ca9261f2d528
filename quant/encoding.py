"""Words that encoders share: rounding, and scales in half precision."""

from typing import Any

from numba import float32

from quant.vectors import absolute, f32x16, floor, half, inline, select, splat, store_half

LARGEST_HALF = float32(65504.0)


@inline
def put_scale(address: int, scale: float) -> Any:
    """Store a scale in half precision, at most the largest finite one; returns what a reader will see."""
    store_half(address, max(min(scale, LARGEST_HALF), -LARGEST_HALF))
    return half(address)


@inline
def inverse_of(scale: float) -> Any:
    """1 / scale; 0 where there is none."""
    return float32(0.0) if scale == float32(0.0) else float32(1.0) / scale


@inline
def rounded(v: Any) -> Any:
    """The nearest whole numbers of an f32x16, a half away from zero."""
    zero, size = splat(f32x16, float32(0.0)), absolute(v)
    down = floor(size)
    whole = down + floor((size - down) + (size - down))
    return select(v < zero, zero - whole, whole)
