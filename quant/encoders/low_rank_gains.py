"""The kernel that computes the gains of low-rank error feedback, from the last column to the first.

`quant.encoders.low_rank` explains it: C_j = D_j + U_j M U_j^T, K_j = M U_j^T / C_j, M -= C_j K_j K_j^T.
"""

from typing import Any

from numba import float64, types

from quant.encoders.low_rank import F64_LANES
from quant.jit.vectors import Vector, fma, inline, load, reduce_sum, splat, store
from quant.packing.format_spec import KernelBody

f64 = Vector(types.float64, F64_LANES)
WIDE = 8 * F64_LANES


@inline
def broadcast(value: float) -> Any:
    """Return a vector of float64 with the value in every lane."""
    return splat(f64, float64(value))


def gains() -> KernelBody:
    """Make the kernel for one matrix of n inputs.

    costs: float64 (n,), D on entry and C on return; components: U, float64 (n, width), where the width is a multiple of
    F64_LANES; gains: K, the same shape; m: M behind the last column, float64 (width, width), which is overwritten.
    """

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        size = 8 * args.width
        for at in range(args.n):
            column = args.n - 1 - at
            u, k = args.components + size * column, args.gains + size * column
            power = broadcast(0.0)
            for i in range(0, size, WIDE):
                product = broadcast(0.0)
                for row in range(args.width):
                    product = fma(broadcast(load(float64, u + 8 * row)), load(f64, args.m + size * row + i), product)
                store(k + i, product)
                power = fma(product, load(f64, u + i), power)
            cost = load(float64, args.costs + 8 * column) + reduce_sum(power)
            store(args.costs + 8 * column, cost)
            inverse = broadcast(float64(1.0) / cost)
            for i in range(0, size, WIDE):
                store(k + i, load(f64, k + i) * inverse)
            for row in range(args.width):
                less = broadcast(-cost * load(float64, k + 8 * row))
                for i in range(0, size, WIDE):
                    address = args.m + size * row + i
                    store(address, fma(less, load(f64, k + i), load(f64, address)))

    return body
