"""Tables of which a superblock has two versions: groups of 16 columns choose the table, or the table plus a shift.

IQ2_K to IQ6_K store codes that index a table of 4 to 64 numbers. Bit g of the 16-bit integer `extra` of a superblock
says whether the shift is added to the numbers of group g. Source: the block structures of ik_llama.cpp.
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

EXTRA = 2  # the offset of the bits of the groups in a superblock


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


def make_shifted_codes(table: ShiftedTable, indices64: Any) -> Any:
    """Return the inlined function codes64(block, j) for a table, from indices64(block, j): the codes of columns 64j ..
    64j + 63 are the numbers plus the zero point.
    """
    look_up = make_lookup([number + table.zero_point for number in table.numbers])
    group_bits, shift = make_constant(u8x64, [1 << lane // 16 for lane in range(64)]), uint8(table.shift)

    @inline
    def codes64(block: int, j: int) -> Any:
        chosen = splat(u8x64, uint8(load(uint16, block + EXTRA) >> uint16(4 * j))) & group_bits()
        none = splat(u8x64, uint8(0))
        return look_up(indices64(block, j)) + select(chosen > none, splat(u8x64, shift), none)

    return codes64
