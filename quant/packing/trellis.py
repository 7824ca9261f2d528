"""Decoding of IQ1_KT to IQ4_KT, whose values a generator makes of indices: see `quant.packing.generator`."""

from collections.abc import Callable, Sequence
from typing import Any

from numba import float32, int8, int32, types, uint8, uint32

from quant.jit.vectors import (
    Vector,
    bitcast,
    concat,
    convert,
    f32x8,
    i8x64,
    i32x8,
    i32x16,
    inline,
    load,
    make_constant,
    make_dot4,
    make_lookup16,
    make_shuffle,
    splat,
    u8x4,
    u8x64,
    u32x16,
)
from quant.packing.format_spec import FormatSpec
from quant.packing.generator import MASK, MIDDLE, MULTIPLIER
from quant.packing.iq4_codebook import CODES, ZERO_POINT

HEADER = 4  # bytes: the scale of a row, float32
LANES = range(0, 64, 4)  # the first column of each lane of 32 bits, in a quarter of the columns

add_six_bits, first_eight = make_dot4(6), make_shuffle(range(8))
scale_of = make_lookup16(CODES)


def columns_of_quarter(order: str, j: int) -> list[int]:
    """Return the columns of quarter j of a superblock in an order of `quant.matmul.layout.ORDERS`."""
    if order == "columns":
        return [*range(64 * j, 64 * j + 64)]
    return [32 * (j // 2 * 4 + group) + j % 2 * 16 + i for group in range(4) for i in range(16)]  # halves


def by_quarter(functions: Sequence[Any]) -> Any:
    """Return the inlined function f(block, j) of the four functions of a block for j from 0 to 3."""
    first, second, third, fourth = functions

    @inline
    def of_quarter(block: int, j: int) -> Any:
        if j < 2:
            return first(block) if j == 0 else second(block)
        return third(block) if j == 2 else fourth(block)

    return of_quarter


def make_values(starts: Any, columns: Sequence[int], group: int) -> Any:
    """Return the inlined function values(block), u8x64: value + MIDDLE of 64 columns, from starts(block), u32x16: index
    + OFFSET of the groups of each four columns. A group has `group` columns.
    """
    powers = [
        make_constant(u32x16, [pow(MULTIPLIER, column % group + 1, 1 << 32) for column in columns[k::4]])
        for k in range(4)
    ]
    first, second, third, fourth = powers

    @inline
    def sums(total: Any, state: Any) -> Any:
        """Return the sums of the bytes, in the lowest byte of each lane, below the bytes of the totals so far."""
        six_bits = bitcast(u8x64, state & splat(u32x16, uint32(MASK)))
        return add_six_bits(total << splat(i32x16, int32(8)), six_bits, splat(i8x64, int8(1)))

    @inline
    def values(block: int) -> Any:
        start = starts(block)
        total = sums(sums(splat(i32x16, int32(0)), start * fourth()), start * third())
        return bitcast(u8x64, sums(sums(total, start * second()), start * first()))

    return values


def make_codes(make_starts: Callable[[Sequence[int]], Any], group: int, order: str) -> Any:
    """Return the inlined function codes(block, j): the codes of quarter j of the columns in some order.

    make_starts(groups) makes the function starts(block) of `make_values` for the groups of sixteen lanes.
    """
    quarters = [columns_of_quarter(order, j) for j in range(4)]
    return by_quarter(
        [make_values(make_starts([columns[lane] // group for lane in LANES]), columns, group) for columns in quarters]
    )


def make_twelve_bits(groups: Sequence[int], n_groups: int, low_at: int, high_at: int) -> Any:
    """Return the inlined function twelve_bits(block), u32x16: the low bits of the indices of these groups.

    A superblock has `n_groups` bytes at `low_at` with the eight low bits. The next four are in the low nibbles of half
    as many bytes at `high_at`, and in the high ones for the second half of the groups.
    """
    half, low_kind, high_kind = n_groups // 2, Vector(types.uint8, n_groups), Vector(types.uint8, n_groups // 2)
    low_bytes, high_bytes = make_shuffle(groups), make_shuffle([group % half for group in groups])
    nibble_shifts = make_constant(u32x16, [4 * (group // half) for group in groups])

    @inline
    def twelve_bits(block: int) -> Any:
        low = convert(u32x16, low_bytes(load(low_kind, block + low_at)))
        nibbles = convert(u32x16, high_bytes(load(high_kind, block + high_at))) >> nibble_shifts()
        return low | ((nibbles & splat(u32x16, uint32(15))) << splat(u32x16, uint32(8)))

    return twelve_bits


def make_trellis_spec(superblock_bytes: int, scales: Any, make_codes_in: Callable[[str], Any]) -> FormatSpec:
    """Return the specification of a format, of which make_codes_in(order) makes the function codes(block, j)."""
    return FormatSpec(
        bits=8,
        group_size=32,
        superblock_bytes=superblock_bytes,
        codes64=make_codes_in("columns"),
        scales=scales,
        zero_point=MIDDLE,
        order="halves",
        ordered_codes=make_codes_in("halves"),
        header_bytes=HEADER,
        row_scale=row_scale,
    )


@inline
def row_scale(row: int) -> float:
    """Return the scale of a row."""
    return load(float32, row)


@inline
def scales_from_nibbles(nibbles: Any) -> Any:
    """Return the scales, f32x8, that nibbles, u8x8, stand for: the numbers of IQ4_NL."""
    numbers = first_eight(scale_of(concat(nibbles, nibbles)))
    return convert(f32x8, convert(i32x8, numbers) - splat(i32x8, int32(ZERO_POINT)))


@inline
def low_and_high_nibbles(packed: Any) -> Any:
    """Return the low nibbles of four bytes, u8x4, and then the high ones, as u8x8."""
    low = packed & splat(u8x4, uint8(15))
    return concat(low, packed >> splat(u8x4, uint8(4)))
