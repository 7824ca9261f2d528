"""Groups of 32 weights whose codes are places in a table of 16 numbers: trials of scales, and the nibbles.

The words work on tiles of 16 groups: see `quant.encoders.searches.tiles` and `quant.encoders.searches.scales`.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, int32, int64

from quant.encoders.searches.tiles import FREE, important, weight
from quant.jit.emit import constant
from quant.jit.vectors import (
    convert,
    f32x16,
    fma,
    gather,
    i32x16,
    inline,
    intrinsic,
    select,
    splat,
    store,
    u8x16,
    word,
)

COLUMNS = 32


def ends(effort: str) -> list[float]:
    """What the farthest weight of a group may become: with either sign, as a table is not symmetric. It ends at -127
    and 113."""
    some = np.linspace(90, 140, {"fast": 4, "normal": 12}[effort])
    return [*some, *-some]


def staircase(table: Sequence[int], kind: Any, values: Sequence[int]) -> Any:
    """The word nearest(t): what belongs to the number of an ascending table that is nearest, for every lane of
    some floats: one of `values`, in a vector of `kind`."""
    between = [(low + high) / 2 for low, high in pairwise(table)]

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        [t] = args
        found = constant(kind.llvm, values[0])
        for place, value in zip(between, values[1:], strict=True):
            found = b.select(b.fcmp_ordered(">", t, constant(t.type, place)), constant(kind.llvm, value), found)
        return found

    @intrinsic
    def nearest(typingctx: Any, t: Any) -> Any:
        return word(kind, [t], emit)

    return nearest


@inline
def inverses_of(s: Any) -> Any:
    """1 / s, lane by lane; 0 where there is none."""
    zero = splat(f32x16, float32(0.0))
    return select(s == zero, zero, splat(f32x16, float32(1.0)) / s)


def fitting(table: Sequence[int]) -> Any:
    """The word fit(scratch, s): ideal and norm of the numbers that, s times, are nearest to the weights."""
    nearest = staircase(table, f32x16, table)

    @inline
    def fit(scratch: int, s: Any) -> Any:
        product, norm, inverse = splat(f32x16, float32(0.0)), splat(f32x16, float32(0.0)), inverses_of(s)
        for j in range(COLUMNS):
            x = weight(scratch, j)
            value = nearest(x * inverse)
            weighed = value * important(scratch, j)
            product, norm = fma(weighed, x, product), fma(weighed, value, norm)
        return product / norm, norm

    return fit


def coding(table: Sequence[int]) -> Any:
    """The word encode_groups(scratch, s): the places of the numbers nearest under the scales s, for `nibbles_of`."""
    nearest = staircase(table, i32x16, range(len(table)))

    @inline
    def encode_groups(scratch: int, s: Any) -> None:
        inverse = inverses_of(s)
        for j in range(16):
            low, high = nearest(weight(scratch, j) * inverse), nearest(weight(scratch, j + 16) * inverse)
            store(scratch + FREE + 16 * j, convert(u8x16, low | (high << splat(i32x16, int32(4)))))

    return encode_groups


@inline
def nibbles_of(scratch: int, group: int) -> Any:
    """u8x16: the codes of a group, those of columns 0 .. 15 in the low nibbles."""
    return gather(u8x16, scratch + FREE + group, int64(16))
