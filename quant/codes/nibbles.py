"""Blocks of 32 weights with a nibble for each: the words that Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL and MXFP4 share.

Such a block is given by its record, whose fields tell where things lie; a field that a format lacks is not asked for.

    d, m   the scale and the min, half precision
    qh     bit i is the fifth bit of column i
    qs     byte i holds column i in its low nibble, and column i + 16 in its high one
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import uint8, uint16, uint32, uint64

from quant.codes.words import Field, Runs, Spread
from quant.jit.vectors import (
    bitcast,
    bits_of_lanes,
    convert,
    f16x8,
    f16x16,
    f32x8,
    f32x16,
    half,
    inline,
    join,
    lanes,
    lanes_of_bits,
    load,
    lookup16,
    numbers,
    pieces,
    select,
    splat,
    store,
    u8x16,
    u8x32,
    u8x64,
    u32x16,
)

Word = Any
Block = np.dtype[np.void]

low_then_high = numbers(u32x16, ([0] * 4 + [4] * 4) * 2)
first_half, second_half = lanes(range(16)), lanes(range(16, 32))
evens, odds = lanes(range(0, 16, 2)), lanes(range(1, 16, 2))


def offset(block: Block, field: str) -> int:
    """Where a field lies in a block, in bytes."""
    assert block.fields is not None
    return int(block.fields[field][1])


@inline
def nibbles64(first: int, second: int) -> Any:
    """The codes of two runs of 16 bytes, in the order of the columns."""
    a, b = load(u8x16, first), load(u8x16, second)
    twice = bitcast(u32x16, join(join(a, a), join(b, b)))
    return bitcast(u8x64, twice >> low_then_high()) & splat(u8x64, uint8(15))


@inline
def nibbles32(address: int) -> Any:
    """The codes of a run of 16 bytes, in the order of the columns."""
    pairs = load(u8x16, address)
    return join(pairs & splat(u8x16, uint8(15)), pairs >> splat(u8x16, uint8(4)))


def four_bits(block: Block) -> tuple[Word, Word, Word]:
    """The words codes64, codes32 and ordered (in halves) where codes are nibbles."""
    size, qs = block.itemsize, offset(block, "qs")

    @inline
    def codes64(superblock: int, j: int) -> Any:
        at = superblock + 2 * j * size + qs
        return nibbles64(at, at + size)

    @inline
    def codes32(row: int, k: int) -> Any:
        return nibbles32(row + k * size + qs)

    four_blocks = pieces(u8x64, range(qs, 4 * size, size), 16, 4 * size)

    @inline
    def ordered(superblock: int, j: int) -> Any:
        both = four_blocks(superblock + j // 2 * 4 * size)
        return both & splat(u8x64, uint8(15)) if j % 2 == 0 else both >> splat(u8x64, uint8(4))

    return codes64, codes32, ordered


def five_bits(block: Block) -> tuple[Word, Word, Word]:
    """The words codes64, codes32 and ordered (in halves) where codes are nibbles and their fifth bits."""
    size, qh = block.itemsize, offset(block, "qh")
    low64, low32, low_ordered = four_bits(block)

    @inline
    def codes64(superblock: int, j: int) -> Any:
        at = superblock + 2 * j * size + qh
        fifths = lanes_of_bits(uint64(load(uint32, at)) | (uint64(load(uint32, at + size)) << uint64(32)))
        return low64(superblock, j) | select(fifths, splat(u8x64, uint8(16)), splat(u8x64, uint8(0)))

    @inline
    def codes32(row: int, k: int) -> Any:
        fifths = lanes_of_bits(load(uint32, row + k * size + qh))
        return low32(row, k) | select(fifths, splat(u8x32, uint8(16)), splat(u8x32, uint8(0)))

    @inline
    def ordered(superblock: int, j: int) -> Any:
        at, bits = superblock + (j // 2 * 4) * size + qh + 2 * (j % 2), uint64(0)
        for block in range(4):
            bits |= uint64(load(uint16, at + block * size)) << uint64(16 * block)
        fifths = select(lanes_of_bits(bits), splat(u8x64, uint8(16)), splat(u8x64, uint8(0)))
        return low_ordered(superblock, j) | fifths

    return codes64, codes32, ordered


def put_four_bits(block: Block) -> Word:
    """The word put32(block, codes), with codes as u8x32, where codes are nibbles. Scales that are there stay."""
    qs = offset(block, "qs")

    @inline
    def put32(block: int, codes: Any) -> None:
        store(
            block + qs, (first_half(codes) & splat(u8x16, uint8(15))) | (second_half(codes) << splat(u8x16, uint8(4)))
        )

    return put32


def put_five_bits(block: Block) -> Word:
    """The word put32 where codes are nibbles and their fifth bits."""
    qh, put_low = offset(block, "qh"), put_four_bits(block)

    @inline
    def put32(block: int, codes: Any) -> None:
        put_low(block, codes)
        store(block + qh, bits_of_lanes(codes > splat(u8x32, uint8(15))))

    return put32


def from_table(block: Block, table: Sequence[int]) -> tuple[Word, Word, Word]:
    """The words codes64, codes32 and ordered (in halves) where nibbles are places in a table of 16 codes."""
    low64, low32, low_ordered = four_bits(block)
    look_up = lookup16(table)

    @inline
    def codes64(superblock: int, j: int) -> Any:
        return look_up(low64(superblock, j))

    @inline
    def codes32(row: int, k: int) -> Any:
        return look_up(low32(row, k))

    @inline
    def ordered(superblock: int, j: int) -> Any:
        return look_up(low_ordered(superblock, j))

    return codes64, codes32, ordered


def runs_of(block: Block, table: Sequence[int] = ()) -> Runs:
    """Where nibbles lie that are codes, with fifth bits if there are any, or places in a table."""
    fields, qs = block.names or (), offset(block, "qs")
    fifths = [(Spread(offset(block, "qh"), 16 * half, to=4),) if "qh" in fields else () for half in range(2)]
    sixteens = ((Field(qs), *fifths[0]), (Field(qs, 4), *fifths[1]))
    return Runs(sixteens, block.itemsize, table=tuple(table), halves=("d" in fields) + ("m" in fields))


def halves(block: Block) -> tuple[Word, Word]:
    """The words scales and scale of a format whose scale is d."""
    size, d = block.itemsize, offset(block, "d")
    eight_scales = pieces(f16x8, range(d, 8 * size, size), 2, 8 * size)

    @inline
    def scales(superblock: int) -> Any:
        return convert(f32x8, eight_scales(superblock))

    @inline
    def scale(row: int, g: int) -> Any:
        return half(row + g * size + d)

    return scales, scale


def pairs_of_halves(block: Block) -> tuple[Word, Word, Word, Word]:
    """The words scales, mins, scale and least of a format whose scale is d, and whose min is the m right behind it."""
    size, d, m = block.itemsize, offset(block, "d"), offset(block, "m")
    eight_pairs = pieces(f16x16, range(d, 8 * size, size), 4, 8 * size)

    @inline
    def both(superblock: int) -> Any:
        return convert(f32x16, eight_pairs(superblock))

    @inline
    def scales(superblock: int) -> Any:
        return evens(both(superblock))

    @inline
    def mins(superblock: int) -> Any:
        return odds(both(superblock))

    @inline
    def scale(row: int, g: int) -> Any:
        return half(row + g * size + d)

    @inline
    def least(row: int, g: int) -> Any:
        return half(row + g * size + m)

    return scales, mins, scale, least
