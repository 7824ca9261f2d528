"""The Walsh-Hadamard transform of a head, which spreads outliers over all dimensions.

It is a rotation and its own inverse: transformed queries and keys have the same products, and a sum of transformed
values is transformed back at the end. Quantization with one scale per block loses least if all values have similar
magnitudes, so keys and values are transformed before they are quantized (QuaRot; Ashkboos et al., 2024).
"""

from typing import Any

from llvmlite import ir
from numba import float32

from localinfer.kernels.attention.cache_types import CacheType
from quant.jit.emit import I32
from quant.jit.vectors import Vector, f32x16, inline, intrinsic, load, lowering, splat, sqrt, store


def swap_add(distance: int) -> Any:
    """Make the function that replaces lanes a and b, `distance` apart, with a + b and a - b."""
    swapped = ir.Constant(ir.VectorType(I32, 16), [lane ^ distance for lane in range(16)])
    signs = ir.Constant(f32x16.llvm, [-1.0 if lane & distance else 1.0 for lane in range(16)])

    @intrinsic
    def apply(typingctx: Any, v: Vector) -> Any:
        def emit(b: ir.IRBuilder, args: Any) -> ir.Value:
            [x] = args
            return b.fadd(b.shuffle_vector(x, x, swapped), b.fmul(x, signs))

        return lowering(v, [v], emit)

    return apply


by_one, by_two, by_four, by_eight = (swap_add(distance) for distance in (1, 2, 4, 8))


def make_hadamard(kind: CacheType) -> Any:
    """Make transform(x, dims, head_dim): transform `dims` float32 values at x in place, if the cache type is quantized.

    They are parts of heads of `head_dim` values, and are transformed in blocks of the largest power of two that divides
    `head_dim`.
    """

    @inline
    def transform(x: int, dims: int, head_dim: int) -> None:
        block = head_dim & -head_dim
        norm = float32(1.0) / sqrt(float32(block))
        for at in range(x, x + 4 * dims, 64):
            v = by_eight(by_four(by_two(by_one(load(f32x16, at)))))
            store(at, v * splat(f32x16, norm))
        distance = 64
        while distance < 4 * block:
            for first in range(x, x + 4 * dims, 2 * distance):
                for at in range(first, first + distance, 64):
                    a, b = load(f32x16, at), load(f32x16, at + distance)
                    store(at, a + b)
                    store(at + distance, a - b)
            distance *= 2

    @inline
    def no_transform(x: int, dims: int, head_dim: int) -> None:
        pass

    return transform if kind.scaled else no_transform
