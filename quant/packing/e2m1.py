"""E2M1, the 4-bit numbers of MXFP4 and NVFP4: a sign, two exponent bits, one mantissa bit.

Source: the OCP microscaling formats (MX) specification 1.0. KVALUES are its numbers doubled, so that they are integers;
the scales of both formats are half of those in their specifications.
"""

from typing import Any

from numba import float32, int32

from quant.jit.vectors import absolute, f32x16, i32x16, inline, select, splat

KVALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
ZERO_POINT = 12
CODES = [value + ZERO_POINT for value in KVALUES]
MIDPOINTS = (0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0)  # between neighbouring magnitudes


@inline
def nearest_e2m1(x: Any, inverse: float) -> Any:
    """Return the indices, i32x16, of the entries of KVALUES nearest to x * inverse; ties go to the smaller
    magnitude.
    """
    size, q, one = absolute(x) * splat(f32x16, inverse), splat(i32x16, int32(0)), splat(i32x16, int32(1))
    for k in range(7):
        q = select(size > splat(f32x16, float32(MIDPOINTS[k])), q + one, q)
    negative = (x < splat(f32x16, float32(0.0))) & (q > splat(i32x16, int32(0)))
    return select(negative, q + splat(i32x16, int32(8)), q)
