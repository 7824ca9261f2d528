"""Groups of 32 weights whose codes are indices into a table of 16 values: trials of scales, and packing of the codes.

The inlined functions work on tiles of 16 groups: see `quant.encoders.searches.tiles` and
`quant.encoders.searches.scales`.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, int32, int64

from quant.encoders.searches.tiles import FREE, load_importance, load_weights
from quant.jit.emit import constant
from quant.jit.vectors import (
    convert,
    f32x16,
    fma,
    gather,
    i32x16,
    inline,
    intrinsic,
    lowering,
    select,
    splat,
    store,
    u8x16,
)

COLUMNS = 32


def target_codes(effort: str) -> list[float]:
    """Return the values to which the trials map the largest weight of a group, of both signs.

    The table is not symmetric: it ends at -127 and 113.
    """
    some = np.linspace(90, 140, {"fast": 4, "normal": 12}[effort])
    return [*some, *-some]


def make_nearest_entry(table: Sequence[int], kind: Any, values: Sequence[int]) -> Any:
    """Make the inlined function nearest(t), which finds the nearest entry of an ascending table in every lane.

    It returns the element of `values` that corresponds to this entry, as a vector of `kind`.
    """
    midpoints = [(low + high) / 2 for low, high in pairwise(table)]

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        [t] = args
        result = constant(kind.llvm, values[0])
        for midpoint, value in zip(midpoints, values[1:], strict=True):
            result = b.select(b.fcmp_ordered(">", t, constant(t.type, midpoint)), constant(kind.llvm, value), result)
        return result

    @intrinsic
    def nearest(typingctx: Any, t: Any) -> Any:
        return lowering(kind, [t], emit)

    return nearest


@inline
def safe_reciprocals(s: Any) -> Any:
    """Return 1 / s lane by lane, and 0 where s is 0."""
    zero = splat(f32x16, float32(0.0))
    return select(s == zero, zero, splat(f32x16, float32(1.0)) / s)


def make_fit(table: Sequence[int]) -> Any:
    """Make the inlined function fit(scratch, s).

    It returns ideal and norm of the table entries that, times s, are nearest to the weights.
    """
    nearest = make_nearest_entry(table, f32x16, table)

    @inline
    def fit(scratch: int, s: Any) -> Any:
        product, norm, inverse = splat(f32x16, float32(0.0)), splat(f32x16, float32(0.0)), safe_reciprocals(s)
        for j in range(COLUMNS):
            x = load_weights(scratch, j)
            value = nearest(x * inverse)
            weighed = value * load_importance(scratch, j)
            product, norm = fma(weighed, x, product), fma(weighed, value, norm)
        return product / norm, norm

    return fit


def make_encode_groups(table: Sequence[int]) -> Any:
    """Make the inlined encode_groups(scratch, s), which stores the nearest table indices for `load_nibbles`."""
    nearest = make_nearest_entry(table, i32x16, range(len(table)))

    @inline
    def encode_groups(scratch: int, s: Any) -> None:
        inverse = safe_reciprocals(s)
        for j in range(16):
            low, high = nearest(load_weights(scratch, j) * inverse), nearest(load_weights(scratch, j + 16) * inverse)
            store(scratch + FREE + 16 * j, convert(u8x16, low | (high << splat(i32x16, int32(4)))))

    return encode_groups


@inline
def load_nibbles(scratch: int, group: int) -> Any:
    """Return the packed codes of a group as u8x16, columns 0 .. 15 in the low nibbles."""
    return gather(u8x16, scratch + FREE + group, int64(16))
