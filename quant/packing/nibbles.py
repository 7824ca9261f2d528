"""Blocks of 32 weights with 4-bit codes, as in Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL and MXFP4.

A numpy record type describes the block, with these fields as far as the format has them:

  d, m   the scale and the min, half precision
  qh     bit i is the fifth bit of column i
  qs     byte i holds column i in its low nibble, and column i + 16 in its high nibble
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import uint8, uint16, uint32, uint64

from quant.jit.vectors import (
    bitcast,
    bits_from_mask,
    concat,
    convert,
    f16x8,
    f16x16,
    f32x8,
    f32x16,
    inline,
    load,
    load_half,
    make_constant,
    make_gather,
    make_lookup16,
    make_shuffle,
    mask_from_bits,
    select,
    splat,
    store,
    u8x16,
    u8x32,
    u8x64,
    u32x16,
)
from quant.packing.format_spec import BitField, BitPlaneField, CodeLayout

InlinedFunction = Any
Block = np.dtype[np.void]

low_then_high = make_constant(u32x16, ([0] * 4 + [4] * 4) * 2)
first_half, second_half = make_shuffle(range(16)), make_shuffle(range(16, 32))
evens, odds = make_shuffle(range(0, 16, 2)), make_shuffle(range(1, 16, 2))


def field_offset(block: Block, field: str) -> int:
    """Return the offset of a field in a block, in bytes."""
    assert block.fields is not None
    return int(block.fields[field][1])


@inline
def nibbles64(first: int, second: int) -> Any:
    """Return the codes of two runs of 16 bytes in column order."""
    a, b = load(u8x16, first), load(u8x16, second)
    twice = bitcast(u32x16, concat(concat(a, a), concat(b, b)))
    return bitcast(u8x64, twice >> low_then_high()) & splat(u8x64, uint8(15))


@inline
def nibbles32(address: int) -> Any:
    """Return the codes of a run of 16 bytes in column order."""
    pairs = load(u8x16, address)
    return concat(pairs & splat(u8x16, uint8(15)), pairs >> splat(u8x16, uint8(4)))


def make_4bit_codes(block: Block) -> tuple[InlinedFunction, InlinedFunction, InlinedFunction]:
    """Return the inlined functions codes64, codes32 and ordered_codes (order "halves") for 4-bit codes."""
    size, qs = block.itemsize, field_offset(block, "qs")

    @inline
    def codes64(superblock: int, j: int) -> Any:
        at = superblock + 2 * j * size + qs
        return nibbles64(at, at + size)

    @inline
    def codes32(row: int, k: int) -> Any:
        return nibbles32(row + k * size + qs)

    four_blocks = make_gather(u8x64, range(qs, 4 * size, size), 16, 4 * size)

    @inline
    def ordered(superblock: int, j: int) -> Any:
        both = four_blocks(superblock + j // 2 * 4 * size)
        return both & splat(u8x64, uint8(15)) if j % 2 == 0 else both >> splat(u8x64, uint8(4))

    return codes64, codes32, ordered


def make_5bit_codes(block: Block) -> tuple[InlinedFunction, InlinedFunction, InlinedFunction]:
    """Return the inlined functions codes64, codes32 and ordered_codes (order "halves") for nibbles with separate fifth
    bits.
    """
    size, qh = block.itemsize, field_offset(block, "qh")
    low64, low32, low_ordered = make_4bit_codes(block)

    @inline
    def codes64(superblock: int, j: int) -> Any:
        at = superblock + 2 * j * size + qh
        fifths = mask_from_bits(uint64(load(uint32, at)) | (uint64(load(uint32, at + size)) << uint64(32)))
        return low64(superblock, j) | select(fifths, splat(u8x64, uint8(16)), splat(u8x64, uint8(0)))

    @inline
    def codes32(row: int, k: int) -> Any:
        fifths = mask_from_bits(load(uint32, row + k * size + qh))
        return low32(row, k) | select(fifths, splat(u8x32, uint8(16)), splat(u8x32, uint8(0)))

    @inline
    def ordered(superblock: int, j: int) -> Any:
        at, bits = superblock + (j // 2 * 4) * size + qh + 2 * (j % 2), uint64(0)
        for block in range(4):
            bits |= uint64(load(uint16, at + block * size)) << uint64(16 * block)
        fifths = select(mask_from_bits(bits), splat(u8x64, uint8(16)), splat(u8x64, uint8(0)))
        return low_ordered(superblock, j) | fifths

    return codes64, codes32, ordered


def make_store_4bit(block: Block) -> InlinedFunction:
    """Return the inlined function store_codes32(block, codes), which packs 4-bit codes, u8x32. The block's scales stay
    unchanged.
    """
    qs = field_offset(block, "qs")

    @inline
    def store_codes32(block: int, codes: Any) -> None:
        store(
            block + qs, (first_half(codes) & splat(u8x16, uint8(15))) | (second_half(codes) << splat(u8x16, uint8(4)))
        )

    return store_codes32


def make_store_5bit(block: Block) -> InlinedFunction:
    """Return the inlined function store_codes32(block, codes) for nibbles with separate fifth bits."""
    qh, store_low_bits = field_offset(block, "qh"), make_store_4bit(block)

    @inline
    def store_codes32(block: int, codes: Any) -> None:
        store_low_bits(block, codes)
        store(block + qh, bits_from_mask(codes > splat(u8x32, uint8(15))))

    return store_codes32


def make_table_codes(block: Block, table: Sequence[int]) -> tuple[InlinedFunction, InlinedFunction, InlinedFunction]:
    """Return the inlined functions codes64, codes32 and ordered_codes (order "halves") for nibbles that index a table
    of 16 codes.
    """
    low64, low32, low_ordered = make_4bit_codes(block)
    look_up = make_lookup16(table)

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


def nibble_layout(block: Block, table: Sequence[int] = ()) -> CodeLayout:
    """Return the code layout for nibbles, with fifth bits if the block has any. Nibbles index `table` if it is not
    empty.
    """
    fields, qs = block.names or (), field_offset(block, "qs")
    fifths = [
        (BitPlaneField(field_offset(block, "qh"), 16 * half, target_bit=4),) if "qh" in fields else ()
        for half in range(2)
    ]
    sixteens = ((BitField(qs), *fifths[0]), (BitField(qs, 4), *fifths[1]))
    return CodeLayout(sixteens, block.itemsize, table=tuple(table), leading_halves=("d" in fields) + ("m" in fields))


def make_half_scales(block: Block) -> tuple[InlinedFunction, InlinedFunction]:
    """Return the inlined functions `scales` and `group_scale` of a format whose scale is the half precision field d."""
    size, d = block.itemsize, field_offset(block, "d")
    eight_scales = make_gather(f16x8, range(d, 8 * size, size), 2, 8 * size)

    @inline
    def scales(superblock: int) -> Any:
        return convert(f32x8, eight_scales(superblock))

    @inline
    def group_scale(row: int, g: int) -> Any:
        return load_half(row + g * size + d)

    return scales, group_scale


def make_half_scales_and_mins(
    block: Block,
) -> tuple[InlinedFunction, InlinedFunction, InlinedFunction, InlinedFunction]:
    """Return the inlined functions `scales`, `mins`, `group_scale` and `group_min`, for the adjacent half precision
    fields d (scale) and m (min).
    """
    size, d, m = block.itemsize, field_offset(block, "d"), field_offset(block, "m")
    eight_pairs = make_gather(f16x16, range(d, 8 * size, size), 4, 8 * size)

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
    def group_scale(row: int, g: int) -> Any:
        return load_half(row + g * size + d)

    @inline
    def group_min(row: int, g: int) -> Any:
        return load_half(row + g * size + m)

    return scales, mins, group_scale, group_min
