"""Ternary weights, -d, 0 and d, for the encoders of TQ1_0 and TQ2_0.

d is the largest magnitude of 256 weights: these formats are for models that were trained with ternary weights.
"""

from typing import Any

from numba import float32, int32

from quant.jit.vectors import absolute, f32x16, i32x16, inline, load, maximum, reduce_max, select, splat


@inline
def largest_magnitude(x: int) -> Any:
    """Return the largest magnitude of the 256 float32 at x."""
    largest = absolute(load(f32x16, x))
    for at in range(64, 1024, 64):
        largest = maximum(largest, absolute(load(f32x16, x + at)))
    return reduce_max(largest)


@inline
def trits(x: int, inverse: float) -> Any:
    """Return the ternary codes of sixteen weights as i32x16: 0, 1 or 2 for -d, 0 and d. Ties round away from 0."""
    scaled, half = load(f32x16, x) * splat(f32x16, inverse), splat(f32x16, float32(0.5))
    zero, one, two = splat(i32x16, int32(0)), splat(i32x16, int32(1)), splat(i32x16, int32(2))
    return select(scaled >= half, two, select(scaled > splat(f32x16, float32(-0.5)), one, zero))
