"""Scales of eight groups with bits in two places: the four low ones in nibbles, the others in a 16-bit integer."""

from collections.abc import Sequence
from typing import Any

from numba import int32, uint16, uint32

from quant.jit.vectors import convert, extract, f32x8, i32x8, inline, load, make_constant, splat, store, u32x8


def make_split_scales(
    low_at: int, nibbles: Sequence[int], high_at: int, high_bits: int, first_bit: int = 0
) -> tuple[Any, Any]:
    """Return the inlined functions scales(block) and store_scales(block, k, first).

    The low bits of the scale of group g are nibble nibbles[g] of the four bytes at `low_at`. The high ones are
    `high_bits` bits from bit first_bit + high_bits * g on of the 16 bits at `high_at`. A scale, f32x8, is the integer
    minus half of its range. `store_scales` stores the integers k, f32x16, of the eight lanes from `first` on; it adds
    bits to those at `high_at`, where these bits must be 0.
    """
    high_firsts = tuple(first_bit + high_bits * group for group in range(8))
    shifts, half = tuple(4 * each for each in nibbles), 8 << high_bits
    low_shifts, high_shifts = make_constant(u32x8, shifts), make_constant(u32x8, high_firsts)
    mask = 16 * ((1 << high_bits) - 1)

    @inline
    def scales(block: int) -> Any:
        low = (splat(u32x8, load(uint32, block + low_at)) >> low_shifts()) & splat(u32x8, uint32(15))
        high = splat(u32x8, uint32(load(uint16, block + high_at)) << uint32(4)) >> high_shifts()
        both = low | (high & splat(u32x8, uint32(mask)))
        return convert(f32x8, convert(i32x8, both) - splat(i32x8, int32(half)))

    @inline
    def store_scales(block: int, k: Any, first: int) -> None:
        low, high = uint32(0), uint16(0)
        for group in range(8):
            bits = uint32(int32(extract(k, first + group)) + int32(half))
            low |= (bits & uint32(15)) << uint32(shifts[group])
            high |= uint16(bits >> uint32(4)) << uint16(high_firsts[group])
        store(block + low_at, uint32(low))
        store(block + high_at, uint16(load(uint16, block + high_at) | high))

    return scales, store_scales
