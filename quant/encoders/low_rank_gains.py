"""The kernel that finds how errors are made up for in a few directions, from the last column to the first.

What for is said in `quant.encoders.low_rank`: C_j = D_j + U_j M U_j^T, K_j = M U_j^T / C_j, M -= C_j K_j K_j^T.
"""

from typing import Any

from numba import float64, types

from quant.codes.words import Body
from quant.encoders.low_rank import DOUBLES
from quant.jit.vectors import Vector, fma, inline, load, splat, store, total

f64 = Vector(types.float64, DOUBLES)
WIDE = 8 * DOUBLES


@inline
def every(value: float) -> Any:
    return splat(f64, float64(value))


def gains() -> Body:
    """The kernel for one matrix of n inputs.

    costs: float64 (n,), D before and C behind; directions: U, float64 (n, width), the width a multiple of DOUBLES;
    gains: K, likewise; m: M of what is behind the last column, float64 (width, width), which is changed.
    """

    def body(n, width, costs, directions, gains, m, part, parts, scratch):
        size = 8 * width
        for at in range(n):
            column = n - 1 - at
            u, k = directions + size * column, gains + size * column
            power = every(0.0)
            for i in range(0, size, WIDE):
                seen = every(0.0)
                for row in range(width):
                    seen = fma(every(load(float64, u + 8 * row)), load(f64, m + size * row + i), seen)
                store(k + i, seen)
                power = fma(seen, load(f64, u + i), power)
            cost = load(float64, costs + 8 * column) + total(power)
            store(costs + 8 * column, cost)
            inverse = every(float64(1.0) / cost)
            for i in range(0, size, WIDE):
                store(k + i, load(f64, k + i) * inverse)
            for row in range(width):
                less = every(-cost * load(float64, k + 8 * row))
                for i in range(0, size, WIDE):
                    place = m + size * row + i
                    store(place, fma(less, load(f64, k + i), load(f64, place)))

    return body
