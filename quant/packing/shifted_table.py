"""Tables of which a superblock has two versions: a group of columns chooses the table, or the table plus a shift.

IQ2_K to IQ6_K, whose groups have 16 columns, and IQ2_KS to IQ5_KS and IQ4_KSS, whose groups have 32, store codes that
index a table of 4 to 64 numbers. A bit of each group says whether the shift is added to its numbers. Source: the block
structures of ik_llama.cpp.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numba import uint8, uint16

from quant.jit.cpu import target
from quant.jit.vectors import (
    inline,
    load,
    make_constant,
    make_lookup16,
    make_lookup256,
    select,
    splat,
    u8x64,
)
from quant.packing.format_spec import FormatSpec

EXTRA = 2  # the offset in superblocks of IQ2_K to IQ6_K of a 16-bit integer with a bit for each group

# By the columns of a group and the order of columns (`quant.matmul.layout.ORDERS`): the divisor and the factor for
# which j // divisor * factor is the first group of quarter j, and how many lanes have each of the groups that follow
# it, whose distance is the last number.
QUARTERS = {
    (16, "columns"): (1, 4, 16, 1),
    (32, "columns"): (1, 2, 32, 1),
    (32, "halves"): (2, 4, 16, 1),
    (32, "evens"): (2, 1, 16, 2),
    (32, "pairs"): (1, 1, 32, 4),
}


@dataclass(frozen=True)
class ShiftedTable:
    """Ascending numbers, what is added to them in groups whose bit is set, and the zero point that makes both sets
    unsigned."""

    numbers: tuple[int, ...]
    shift: int
    zero_point: int

    @property
    def bits(self) -> int:
        """The number of bits of the largest number plus the zero point."""
        return (self.numbers[-1] + self.shift + self.zero_point).bit_length()


def make_lookup(table: Sequence[int]) -> Any:
    """Return an inlined function that maps every byte i of a u8x64 to table[i], which has at most 64 bytes."""
    if len(table) > 16 and target().has_byte_permute:
        return make_lookup256([table[i % len(table)] for i in range(256)])
    sixteens = [make_lookup16([*table[first : first + 16], *[0] * 16][:16]) for first in range(0, len(table), 16)]
    look_up = sixteens[0]
    for number, other in enumerate(sixteens[1:], 1):
        look_up = make_lookup_above(look_up, other, 16 * number)
    return look_up


def make_lookup_above(below: Any, above: Any, first: int) -> Any:
    """Return the inlined function that uses `above` for indices from `first` on, and `below` for smaller ones."""
    last = uint8(first - 1)

    @inline
    def look_up(index: Any) -> Any:
        return select(index > splat(u8x64, last), above(index & splat(u8x64, uint8(15))), below(index))

    return look_up


@inline
def extra_bits(block: int) -> int:
    """Return the bits of the groups of IQ2_K to IQ6_K."""
    return load(uint16, block + EXTRA)


def make_shifted_codes(
    table: ShiftedTable, indices: Any, group_bits: Any = extra_bits, group_size: int = 16, order: str = "columns"
) -> Any:
    """Return the inlined function codes(block, j) for a table, from indices(block, j): the codes of quarter j of the
    columns in some order are the numbers plus the zero point.

    Bit g of group_bits(block), a 16-bit integer, says whether group g has the shift.
    """
    divisor, factor, lanes, distance = QUARTERS[group_size, order]
    look_up = make_lookup([number + table.zero_point for number in table.numbers])
    bits_of_lanes = make_constant(u8x64, [1 << lane // lanes * distance for lane in range(64)])
    shift = uint8(table.shift)

    @inline
    def codes(block: int, j: int) -> Any:
        chosen = splat(u8x64, uint8(group_bits(block) >> uint16(j // divisor * factor))) & bits_of_lanes()
        none = splat(u8x64, uint8(0))
        return look_up(indices(block, j)) + select(chosen > none, splat(u8x64, shift), none)

    return codes


def make_shifted_spec(table: ShiftedTable, superblock_bytes: int, indices: Any, scales: Any) -> FormatSpec:
    """Return the spec of one of IQ2_K to IQ6_K: indices(block, j) are those of the table, scales(block) have d."""
    return FormatSpec(
        bits=table.bits,
        group_size=16,
        superblock_bytes=superblock_bytes,
        codes64=make_shifted_codes(table, indices),
        scales=scales,
        zero_point=table.zero_point,
    )
