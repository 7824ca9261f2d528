"""E2M1, the numbers of 4 bits in MXFP4 and NVFP4: a sign, two bits of exponent, one of mantissa.

Source: the OCP microscaling formats (MX) specification 1.0. KVALUES are its numbers doubled, so that they are whole;
the scales of both formats are half of what their specifications say.
"""

from typing import Any

from numba import float32, int32

from quant.jit.vectors import absolute, f32x16, i32x16, inline, select, splat

KVALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
ZERO = 12
CODES = [value + ZERO for value in KVALUES]
BETWEEN = (0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0)  # of neighbours


@inline
def nearest(x: Any, inverse: float) -> Any:
    """i32x16: places in KVALUES of those nearest to x * inverse; in the middle between two, the smaller one."""
    size, q, one = absolute(x) * splat(f32x16, inverse), splat(i32x16, int32(0)), splat(i32x16, int32(1))
    for k in range(7):
        q = select(size > splat(f32x16, float32(BETWEEN[k])), q + one, q)
    negative = (x < splat(f32x16, float32(0.0))) & (q > splat(i32x16, int32(0)))
    return select(negative, q + splat(i32x16, int32(8)), q)
