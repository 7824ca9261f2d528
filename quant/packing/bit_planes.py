"""Bit planes: 32 bytes, each with bits of columns at a distance of 32, as k-quants store codes.

With 4, 2 or 1 bits per column, the lowest bits of byte i belong to column i, the next ones to column 32 + i, and so on.
Two neighbouring planes are the codes of 64 columns, or the low or the high bits of the codes.
"""

from typing import Any

from numba import uint8, uint32

from quant.jit.bits import make_shift_insert
from quant.jit.vectors import (
    bitcast,
    concat,
    inline,
    load,
    make_constant,
    make_shuffle,
    splat,
    store,
    u8x16,
    u8x32,
    u8x64,
    u32x16,
)


def make_two_planes(bits: int, target_bit: int = 0, plane_distance: int = 1) -> Any:
    """Return the inlined function two_planes(v, first): the codes' bits of two planes, u8x64, from the u8x32 `v`.

    The first plane is the `bits` bits from bit `first` on, the second lies `plane_distance` planes above it. They
    become bits `target_bit` and up of the codes. `target_bit` is a multiple of `bits`, so that both planes are shifted
    in the same direction.
    """
    above = make_constant(u32x16, [0] * 8 + [plane_distance * bits] * 8)
    mask = uint8(((1 << bits) - 1) << target_bit)

    @inline
    def two_planes(v: Any, first: int) -> Any:
        twice = bitcast(u32x16, concat(v, v))
        if first < target_bit:
            moved = twice << (splat(u32x16, uint32(target_bit - first)) - above())
        else:
            moved = twice >> (splat(u32x16, uint32(first - target_bit)) + above())
        return bitcast(u8x64, moved) & splat(u8x64, mask)

    return two_planes


def make_2bit_codes(qs: int) -> Any:
    """Return `codes64` for 2-bit planes at offset `qs`."""
    two_planes = make_two_planes(2)

    @inline
    def codes64(block: int, j: int) -> Any:
        return two_planes(load(u8x32, block + qs + 32 * (j // 2)), 4 * (j % 2))

    return codes64


def make_bits(qh: int, target_bit: int) -> Any:
    """Return a function of (block, j) like `codes64` for 1-bit planes at offset `qh`: each column's bit, moved to bit
    `target_bit`.
    """
    two_planes = make_two_planes(1, target_bit=target_bit)

    @inline
    def bits64(block: int, j: int) -> Any:
        return two_planes(load(u8x32, block + qh), 2 * j)

    return bits64


def make_nibbles(qs: int) -> Any:
    """Return `codes64` for 4-bit planes at offset `qs`."""
    two_planes = make_two_planes(4)

    @inline
    def codes64(block: int, j: int) -> Any:
        return two_planes(load(u8x32, block + qs + 32 * j), 0)

    return codes64


def make_joined(low: Any, high: Any) -> Any:
    """Return the inlined function of (block, j) that returns the bits of both."""

    @inline
    def joined(block: int, j: int) -> Any:
        return low(block, j) | high(block, j)

    return joined


def make_2bit_codes_in_pairs(qs: int) -> Any:
    """Return `ordered_codes` in the order "pairs" for 2-bit planes at offset `qs`: the same plane of both halves of the
    block.
    """

    @inline
    def ordered(block: int, j: int) -> Any:
        return (load(u8x64, block + qs) >> splat(u8x64, uint8(2 * j))) & splat(u8x64, uint8(3))

    return ordered


def make_bits_in_pairs(qh: int, target_bit: int) -> Any:
    """Return a function in the order "pairs" for 1-bit planes at offset `qh`: each column's bit, moved to bit
    `target_bit`.
    """

    @inline
    def ordered(block: int, j: int) -> Any:
        plane = load(u8x32, block + qh)
        both = concat(plane, plane >> splat(u8x32, uint8(4)))
        return ((both >> splat(u8x64, uint8(j))) & splat(u8x64, uint8(1))) << splat(u8x64, uint8(target_bit))

    return ordered


def make_nibbles_in_halves(qs: int) -> Any:
    """Return `ordered_codes` in the order "halves" for nibbles at offset `qs` whose low nibbles are a group's first 16
    columns.
    """

    @inline
    def pairs64(block: int, half: int) -> Any:
        return load(u8x64, block + qs + 64 * half)

    return make_halves_of_pairs(pairs64)


def make_halves_of_pairs(pairs64: Any) -> Any:
    """Return `ordered_codes` in the order "halves" for pairs64(block, half), u8x64: the nibbles of four groups, of
    which the low ones are a group's first 16 columns.
    """

    @inline
    def ordered(block: int, j: int) -> Any:
        both = pairs64(block, j // 2)
        return both & splat(u8x64, uint8(15)) if j % 2 == 0 else both >> splat(u8x64, uint8(4))

    return ordered


def make_store_nibbles_in_halves(qs: int) -> Any:
    """Return the inlined function store_nibbles(block, codes): pack 256 codes below 16, one byte each, into 128 bytes
    at offset `qs`. Each 16 bytes hold 32 columns, the first 16 of them in the low nibbles.
    """

    @inline
    def store_nibbles(block: int, codes: int) -> None:
        for group in range(8):
            low, high = load(u8x16, codes + 32 * group), load(u8x16, codes + 32 * group + 16)
            store(block + qs + 16 * group, low | (high << splat(u8x16, uint8(4))))

    return store_nibbles


even_quarters = make_shuffle([64 * half + 32 * j + i for half in range(2) for j in range(2) for i in range(16)])
odd_quarters = make_shuffle([64 * half + 32 * j + 16 + i for half in range(2) for j in range(2) for i in range(16)])


def make_nibbles_in_evens(qs: int) -> Any:
    """Return `ordered_codes` in the order "evens" for nibbles at offset `qs` whose low nibbles belong to
    even groups.
    """

    @inline
    def ordered(block: int, j: int) -> Any:
        every = concat(load(u8x64, block + qs), load(u8x64, block + qs + 64))
        both = even_quarters(every) if j % 2 == 0 else odd_quarters(every)
        return both & splat(u8x64, uint8(15)) if j < 2 else both >> splat(u8x64, uint8(4))

    return ordered


def make_bits_in_evens(qh: int, target_bit: int) -> Any:
    """Return a function in the order "evens" for 1-bit planes at offset `qh`: each column's bit, moved to bit
    `target_bit`.
    """
    rotations = [
        make_constant(u32x16, [(target_bit - 2 * (lane // 4) - odd) % 32 for lane in range(16)]) for odd in range(2)
    ]
    even_rotations, odd_rotations = rotations
    mask = uint8(1 << target_bit)

    @inline
    def rotated(v: Any, by: Any) -> Any:
        return (v << by) | (v >> ((splat(u32x16, uint32(32)) - by) & splat(u32x16, uint32(31))))

    @inline
    def ordered(block: int, j: int) -> Any:
        half = load(u8x16, block + qh + 16 * (j % 2))
        four_halves = bitcast(u32x16, concat(concat(half, half), concat(half, half)))
        return bitcast(u8x64, rotated(four_halves, even_rotations() if j < 2 else odd_rotations())) & splat(u8x64, mask)

    return ordered


def make_5bit_evens_by_insertion(qs: int, qh: int) -> Any:
    """Return `ordered_codes` in the order "evens" for nibbles at offset `qs` with fifth bits in 1-bit planes at offset
    `qh`. Requires `target().has_shift_insert`.
    """
    insert_above, insert_below = make_shift_insert("sli", 4), make_shift_insert("sri", 4)
    even_bits, odd_falls, odd_rises = (
        make_constant(u8x64, [shift for shift in shifts for _ in range(16)])
        for shifts in ((0, 2, 4, 6), (0, 0, 1, 3), (3, 1, 0, 0))
    )

    @inline
    def ordered(block: int, j: int) -> Any:
        every = concat(load(u8x64, block + qs), load(u8x64, block + qs + 64))
        nibbles = even_quarters(every) if j % 2 == 0 else odd_quarters(every)
        half = load(u8x16, block + qh + j % 2 * 16)
        bits = concat(concat(half, half), concat(half, half))
        if j < 2:
            return insert_above(nibbles, (bits >> even_bits()) & splat(u8x64, uint8(1)))
        moved = (bits >> odd_falls()) << odd_rises()
        return insert_below(moved & splat(u8x64, uint8(16)), nibbles)

    return ordered


def make_store_plane(bits: int, source_bit: int) -> Any:
    """Return the inlined function store_plane(address, codes): pack a bit plane of 32 bytes from codes, one byte each.

    The plane gets the `bits` bits from bit `source_bit` on of each code.
    """
    count, mask = 8 // bits, uint8((1 << bits) - 1)

    @inline
    def store_plane(address: int, codes: int) -> None:
        plane = splat(u8x32, uint8(0))
        for k in range(count):
            bits_of_column = (load(u8x32, codes + 32 * k) >> splat(u8x32, uint8(source_bit))) & splat(u8x32, mask)
            plane = plane | (bits_of_column << splat(u8x32, uint8(bits * k)))
        store(address, plane)

    return store_plane


def make_store_nibble_pairs(qs: int) -> Any:
    """Return the inlined function store_nibble_pairs(block, codes): pack the low nibbles of 256 codes, one byte each,
    into 128 bytes at offset `qs`.

    Each 32 bytes hold 64 columns, the first 32 of them in the low nibbles.
    """

    @inline
    def store_nibble_pairs(block: int, codes: int) -> None:
        for j in range(4):
            low, high = load(u8x32, codes + 64 * j), load(u8x32, codes + 64 * j + 32)
            nibble = splat(u8x32, uint8(15))
            store(block + qs + 32 * j, (low & nibble) | ((high & nibble) << splat(u8x32, uint8(4))))

    return store_nibble_pairs
