"""Blocks of 32 weights with 4-bit codes, as in Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL and MXFP4.

A numpy record type describes the block, with these fields as far as the format has them:

  d, m   the scale and the min, half precision
  qh     bit i is the fifth bit of column i
  qs     byte i holds column i in its low nibble, and column i + 16 in its high nibble
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types, uint8, uint16, uint32, uint64

from quant.jit.bits import make_shift_insert, make_spread_bits
from quant.jit.cpu import target
from quant.jit.emit import I32, constant
from quant.jit.vectors import (
    Vector,
    bitcast,
    bits_from_mask,
    concat,
    extract,
    inline,
    intrinsic,
    load,
    lowering,
    make_constant,
    make_gather,
    make_lookup16,
    make_shuffle,
    splat,
    store,
    u8x8,
    u8x16,
    u8x32,
    u8x64,
    u16x8,
    u32x16,
    u64x2,
)
from quant.packing.format_spec import (
    BitField,
    BitPlaneField,
    Block,
    CodeLayout,
    FormatSpec,
    InlinedFunction,
    field_offset,
)
from quant.packing.half_scales import make_half_scales, make_half_scales_and_mins

lowest, fifths = make_spread_bits(0), make_spread_bits(4)
insert_above, insert_below = make_shift_insert("sli", 4), make_shift_insert("sri", 4)
low_then_high = make_constant(u32x16, ([0] * 4 + [4] * 4) * 2)
first_half, second_half = make_shuffle(range(16)), make_shuffle(range(16, 32))


@inline
def nibbles_of_twice(twice: Any) -> Any:
    """Return the low nibbles of sixteen bytes, the high ones of the next sixteen, and so on, from a u8x64."""
    return bitcast(u8x64, bitcast(u32x16, twice) >> low_then_high()) & splat(u8x64, uint8(15))


@inline
def nibbles64(first: int, second: int) -> Any:
    """Return the codes of two runs of 16 bytes in column order."""
    a, b = load(u8x16, first), load(u8x16, second)
    return nibbles_of_twice(concat(concat(a, a), concat(b, b)))


@inline
def nibbles32(address: int) -> Any:
    """Return the codes of a run of 16 bytes in column order."""
    pairs = load(u8x16, address)
    return concat(pairs & splat(u8x16, uint8(15)), pairs >> splat(u8x16, uint8(4)))


@intrinsic
def unpack_nibbles(typingctx: Any, packed: Any) -> Any:
    """Return two 4-bit numbers from each byte of a vector, the lower first."""
    count = packed.lanes
    in_turn = ir.Constant(ir.VectorType(I32, 2 * count), [i // 2 + i % 2 * count for i in range(2 * count)])

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        [v] = args
        return b.shuffle_vector(b.and_(v, constant(v.type, 15)), b.lshr(v, constant(v.type, 4)), in_turn)

    return lowering(Vector(types.uint8, 2 * count), [packed], emit)


even_lanes, odd_lanes = make_shuffle(range(0, 16, 2)), make_shuffle(range(1, 16, 2))


@inline
def pack_nibbles(numbers: Any) -> Any:
    """Return sixteen 4-bit numbers, u8x16, as a u8x8: the inverse of `unpack_nibbles`."""
    return even_lanes(numbers) | (odd_lanes(numbers) << splat(u8x8, uint8(4)))


def make_nibbles_of_groups(qs: int) -> InlinedFunction:
    """Return `codes64` for nibbles at offset `qs`: each 16 bytes hold 32 columns, the first 16 of them in the low
    nibbles.
    """

    @inline
    def codes64(block: int, j: int) -> Any:
        at = block + qs + 32 * j
        return nibbles64(at, at + 16)

    return codes64


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
    size, qs, qh = block.itemsize, field_offset(block, "qs"), field_offset(block, "qh")
    low64, low32, low_ordered = make_4bit_codes(block)

    @inline
    def codes64(superblock: int, j: int) -> Any:
        at = superblock + 2 * j * size + qh
        bits = uint64(load(uint32, at)) | (uint64(load(uint32, at + size)) << uint64(32))
        return low64(superblock, j) | fifths(bits)

    @inline
    def codes32(row: int, k: int) -> Any:
        return low32(row, k) | fifths(load(uint32, row + k * size + qh))

    @inline
    def by_loads(superblock: int, j: int) -> Any:
        at, bits = superblock + (j // 2 * 4) * size + qh + 2 * (j % 2), uint64(0)
        for block in range(4):
            bits |= uint64(load(uint16, at + block * size)) << uint64(16 * block)
        return bits

    four_masks = make_gather(u16x8, [qh + 2 * half + i * size for half in range(2) for i in range(4)], 2, 4 * size)

    @inline
    def by_shuffle(superblock: int, j: int) -> Any:
        return extract(bitcast(u64x2, four_masks(superblock + j // 2 * 4 * size)), j % 2)

    fifth_bits = by_shuffle if target().has_512_bit_vectors else by_loads

    @inline
    def ordered(superblock: int, j: int) -> Any:
        return low_ordered(superblock, j) | fifths(fifth_bits(superblock, j))

    four_blocks = make_gather(u8x64, range(qs, 4 * size, size), 16, 4 * size)

    @inline
    def ordered_by_insertion(superblock: int, j: int) -> Any:
        both, bits = four_blocks(superblock + j // 2 * 4 * size), fifth_bits(superblock, j)
        return insert_above(both, lowest(bits)) if j % 2 == 0 else insert_below(fifths(bits), both)

    return codes64, codes32, ordered_by_insertion if target().has_shift_insert else ordered


def make_store_codes32(block: Block) -> InlinedFunction:
    """Return the inlined function store_codes32(block, codes), which packs 32 codes, u8x32, into nibbles and, if the
    block has the field qh, into fifth bits. It leaves the block's scales unchanged.
    """
    qs, has_fifth_bits = field_offset(block, "qs"), "qh" in (block.names or ())
    qh = field_offset(block, "qh") if has_fifth_bits else 0

    @inline
    def store_codes32(block: int, codes: Any) -> None:
        low, high = first_half(codes) & splat(u8x16, uint8(15)), second_half(codes) << splat(u8x16, uint8(4))
        store(block + qs, low | high)
        if has_fifth_bits:
            store(block + qh, bits_from_mask(codes > splat(u8x32, uint8(15))))

    return store_codes32


def make_table_codes(
    block: Block, table: Sequence[int], zero_point: int
) -> tuple[InlinedFunction, InlinedFunction, InlinedFunction, InlinedFunction]:
    """Return the inlined functions codes64, codes32, ordered_codes and signed_codes (both in the order "halves") for
    nibbles that index a table of 16 numbers. A code is a number plus the zero point.
    """
    low64, low32, low_ordered = make_4bit_codes(block)
    look_up, look_up_number = make_lookup16([number + zero_point for number in table]), make_lookup16(table)

    @inline
    def codes64(superblock: int, j: int) -> Any:
        return look_up(low64(superblock, j))

    @inline
    def codes32(row: int, k: int) -> Any:
        return look_up(low32(row, k))

    @inline
    def ordered(superblock: int, j: int) -> Any:
        return look_up(low_ordered(superblock, j))

    @inline
    def signed(superblock: int, j: int) -> Any:
        return look_up_number(low_ordered(superblock, j))

    return codes64, codes32, ordered, signed


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


def make_nibble_spec(block: Block, bits: int, zero_point: int, table: Sequence[int] = ()) -> FormatSpec:
    """Return the specification of a format with the fields described above. Codes have `bits` bits.

    If `table` is not empty, nibbles index it, and its numbers plus `zero_point` are the codes.
    """
    fields, codes, signed = block.names or (), [number + zero_point for number in table], None
    if table:
        codes64, codes32, ordered, signed = make_table_codes(block, table, zero_point)
    else:
        codes64, codes32, ordered = make_5bit_codes(block) if "qh" in fields else make_4bit_codes(block)
    mins, group_min = None, None
    if "m" in fields:
        scales, mins, group_scale, group_min = make_half_scales_and_mins(block)
    else:
        scales, group_scale = make_half_scales(block)
    return FormatSpec(
        bits=bits,
        group_size=32,
        superblock_bytes=8 * block.itemsize,
        codes64=codes64,
        scales=scales,
        mins=mins,
        codes32=codes32,
        group_scale=group_scale,
        group_min=group_min,
        zero_point=zero_point,
        order="halves",
        ordered_codes=ordered,
        signed_codes=signed,
        table=table,
        code_layout=nibble_layout(block, codes),
    )
