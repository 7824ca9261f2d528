"""The Walsh-Hadamard transform of a head, which spreads an outlier over all dimensions.

It is a rotation and its own inverse: queries and keys that are both turned have the same products, and a sum of turned
values is turned back at the end. A block of codes with one scale loses least where all values are of one size: so keys
and values are turned before they are quantized (QuaRot, Ashkboos et al., 2024).
"""

from typing import Any

from llvmlite import ir
from numba import float32

from quant.jit.emit import I32
from quant.jit.vectors import Vector, f32x16, inline, intrinsic, load, splat, store, word


def swap_add(distance: int) -> Any:
    """The word that makes a + b and a - b of lanes a and b that are so far apart."""
    swapped = ir.Constant(ir.VectorType(I32, 16), [lane ^ distance for lane in range(16)])
    signs = ir.Constant(f32x16.llvm, [-1.0 if lane & distance else 1.0 for lane in range(16)])

    @intrinsic
    def apply(typingctx: Any, v: Vector) -> Any:
        def emit(b: ir.IRBuilder, args: Any) -> ir.Value:
            [x] = args
            return b.fadd(b.shuffle_vector(x, x, swapped), b.fmul(x, signs))

        return word(v, [v], emit)

    return apply


by_one, by_two, by_four, by_eight = (swap_add(distance) for distance in (1, 2, 4, 8))


def part_of(head_dim: int) -> int:
    """The length of the parts in which a head is transformed whose length is no power of two."""
    return head_dim & -head_dim


def hadamard_word(head_dim: int, part: int) -> Any:
    """The word transform(x): the head of float32 at x, in place, by parts of so many dimensions."""
    norm = float32(part**-0.5)

    @inline
    def transform(x: int) -> None:
        for at in range(x, x + 4 * head_dim, 64):
            v = by_eight(by_four(by_two(by_one(load(f32x16, at)))))
            store(at, v * splat(f32x16, norm))
        distance = 64
        while distance < 4 * part:
            for first in range(x, x + 4 * head_dim, 2 * distance):
                for at in range(first, first + distance, 64):
                    a, b = load(f32x16, at), load(f32x16, at + distance)
                    store(at, a + b)
                    store(at + distance, a - b)
            distance *= 2

    return transform


def nothing_word() -> Any:
    """The word that leaves a head as it is."""

    @inline
    def nothing(x: int) -> None:
        pass

    return nothing
