"""Weights of three values, -d, 0 and d: what the encoders of TQ1_0 and TQ2_0 share.

d is the largest magnitude of 256 weights: these formats are for models that were trained with three values.
"""

from typing import Any

from numba import float32, int32

from quant.jit.vectors import absolute, f32x16, i32x16, inline, largest, load, maximum, select, splat


@inline
def largest_magnitude(x: int) -> Any:
    """Of 256 float32."""
    found = absolute(load(f32x16, x))
    for at in range(64, 1024, 64):
        found = maximum(found, absolute(load(f32x16, x + at)))
    return largest(found)


@inline
def trits(x: int, inverse: float) -> Any:
    """i32x16: 0, 1 or 2 for weights nearest to -d, 0 and d; right in the middle, the one away from 0."""
    scaled, half = load(f32x16, x) * splat(f32x16, inverse), splat(f32x16, float32(0.5))
    zero, one, two = splat(i32x16, int32(0)), splat(i32x16, int32(1)), splat(i32x16, int32(2))
    return select(scaled >= half, two, select(scaled > splat(f32x16, float32(-0.5)), one, zero))
