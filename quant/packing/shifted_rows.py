"""The fields of IQ2_KS to IQ5_KS and IQ4_KSS: a row begins with one scale, and a superblock has small integers as
scales of its groups of 32 columns. A bit of each group chooses its table (`quant.packing.shifted_table`).

Source: the block structures of ik_llama.cpp.
"""

from typing import Any

from numba import float32, int32, uint8, uint16, uint64

from quant.jit.vectors import (
    bitcast,
    convert,
    extract,
    f32x8,
    i32x8,
    inline,
    load,
    load_half,
    splat,
    u8x8,
)
from quant.packing.format_spec import FormatSpec
from quant.packing.shifted_table import ShiftedTable, make_shifted_codes

LOWEST_BITS, GATHER_BITS = uint64(0x0101010101010101), uint64(0x0102040810204080)


@inline
def float_row_scale(row: int) -> float:
    """Return the scale of a row whose header is a float32."""
    return load(float32, row)


def make_row_spec(
    table: ShiftedTable, superblock_bytes: int, header_bytes: int, scales: Any, group_bits: Any, indices64: Any,
    ordered_indices: Any, order: str,
) -> FormatSpec:  # fmt: skip
    """Return the specification of a format, whose header is a half or a float32.

    indices64(block, j) and ordered_indices(block, j) are the table indices of quarter j of the columns, as they are and
    in `order`.
    """
    return FormatSpec(
        bits=table.bits,
        group_size=32,
        superblock_bytes=superblock_bytes,
        codes64=make_shifted_codes(table, indices64, group_bits, 32),
        scales=scales,
        zero_point=table.zero_point,
        order=order,
        ordered_codes=make_shifted_codes(table, ordered_indices, group_bits, 32, order),
        header_bytes=header_bytes,
        row_scale={2: load_half, 4: float_row_scale}[header_bytes],
    )


# --- IQ4_KS, IQ4_KSS and IQ5_KS: the scales are odd numbers, and their bytes also hold the bits of the groups --------


def make_odd_scales(scale_bytes: Any) -> tuple[Any, Any]:
    """Return the inlined functions scales(block) and group_bits(block) for the bytes of eight groups, which
    scale_bytes(block) returns as an integer of 64 bits, the first one lowest.

    The lowest bit of a byte is that of the group; seven bits, times two, minus 127 are the scale.
    """

    @inline
    def scales(block: int) -> Any:
        even = bitcast(u8x8, scale_bytes(block)) & splat(u8x8, uint8(254))
        return convert(f32x8, convert(i32x8, even) - splat(i32x8, int32(127)))

    @inline
    def group_bits(block: int) -> int:
        return uint16(((scale_bytes(block) & LOWEST_BITS) * GATHER_BITS) >> uint64(56))

    return scales, group_bits


@inline
def bytes_in_front(block: int) -> int:
    """Return the bytes that a block begins with."""
    return load(uint64, block)


@inline
def odd_scale_bytes(k: Any, first: int, group_bits: int) -> int:
    """Return the bytes of the odd numbers k, f32x16, of the eight lanes from `first` on, and the bits of their
    groups.
    """
    packed: Any = uint64(0)
    for group in range(8):
        bit = int32(group_bits >> group) & int32(1)
        packed |= uint64(int32(extract(k, first + group)) + int32(127) + bit) << uint64(8 * group)
    return packed
