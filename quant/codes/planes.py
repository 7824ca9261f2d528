"""Bit planes: 32 bytes in which every byte holds bits of several columns that lie 32 apart, as k-quants store codes.

With 4, 2 or 1 bits for a column, the lowest bits of byte i are those of column i, the next ones those of column 32 + i,
and so on. Two neighbouring planes are the codes of 64 columns, or the low or the high bits of them.
"""

from typing import Any

from numba import uint8, uint32

from quant.jit.vectors import bitcast, inline, join, lanes, load, numbers, splat, store, u8x16, u8x32, u8x64, u32x16


def planes(bits: int, at: int = 0, apart: int = 1) -> Any:
    """The word two_planes(v, first): u8x64 from a u8x32, the `bits` bits from bit `first` on, then those
    `apart` planes above them.

    They become bits `at` and up of a code; `at` is a multiple of `bits`, so that both planes move the same way.
    """
    above = numbers(u32x16, [0] * 8 + [apart * bits] * 8)
    mask = uint8(((1 << bits) - 1) << at)

    @inline
    def two_planes(v: Any, first: int) -> Any:
        twice = bitcast(u32x16, join(v, v))
        if first < at:
            moved = twice << (splat(u32x16, uint32(at - first)) - above())
        else:
            moved = twice >> (splat(u32x16, uint32(first - at)) + above())
        return bitcast(u8x64, moved) & splat(u8x64, mask)

    return two_planes


def fours_of_planes(qs: int) -> Any:
    """The word of a block whose 2-bit planes lie `qs` bytes behind its start: the same plane of both its halves."""

    @inline
    def ordered(block: int, j: int) -> Any:
        return (load(u8x64, block + qs) >> splat(u8x64, uint8(2 * j))) & splat(u8x64, uint8(3))

    return ordered


def halves_of_nibbles(qs: int) -> Any:
    """The word of a block whose nibbles lie `qs` bytes behind its start: low ones are a group's first 16 columns."""

    @inline
    def ordered(block: int, j: int) -> Any:
        both = load(u8x64, block + qs + 64 * (j // 2))
        return both & splat(u8x64, uint8(15)) if j % 2 == 0 else both >> splat(u8x64, uint8(4))

    return ordered


even_quarters = lanes([64 * half + 32 * j + i for half in range(2) for j in range(2) for i in range(16)])
odd_quarters = lanes([64 * half + 32 * j + 16 + i for half in range(2) for j in range(2) for i in range(16)])


def evens_of_nibbles(qs: int) -> Any:
    """The word of a block whose nibbles lie `qs` bytes behind its start: those of even groups are the low ones."""

    @inline
    def ordered(block: int, j: int) -> Any:
        every = join(load(u8x64, block + qs), load(u8x64, block + qs + 64))
        both = even_quarters(every) if j % 2 == 0 else odd_quarters(every)
        return both & splat(u8x64, uint8(15)) if j < 2 else both >> splat(u8x64, uint8(4))

    return ordered


def evens_of_bits(qh: int, at: int) -> Any:
    """The word of a block whose 1-bit planes lie `qh` bytes behind its start: that bit of each group, as bit `at`."""
    turns = [numbers(u32x16, [(at - 2 * (lane // 4) - odd) % 32 for lane in range(16)]) for odd in range(2)]
    even_turns, odd_turns = turns
    mask = uint8(1 << at)

    @inline
    def turned(v: Any, by: Any) -> Any:
        return (v << by) | (v >> ((splat(u32x16, uint32(32)) - by) & splat(u32x16, uint32(31))))

    @inline
    def ordered(block: int, j: int) -> Any:
        half = load(u8x16, block + qh + 16 * (j % 2))
        four = bitcast(u32x16, join(join(half, half), join(half, half)))
        return bitcast(u8x64, turned(four, even_turns() if j < 2 else odd_turns())) & splat(u8x64, mask)

    return ordered


def put_planes(bits: int, at: int) -> Any:
    """The word put(place, codes): the `bits` bits from bit `at` on of the codes, a byte each, into the 32 bytes of a
    whole plane."""
    count, mask = 8 // bits, uint8((1 << bits) - 1)

    @inline
    def put(place: int, codes: int) -> None:
        plane = splat(u8x32, uint8(0))
        for k in range(count):
            part = (load(u8x32, codes + 32 * k) >> splat(u8x32, uint8(at))) & splat(u8x32, mask)
            plane = plane | (part << splat(u8x32, uint8(bits * k)))
        store(place, plane)

    return put


def put_nibble_pairs(qs: int) -> Any:
    """The word put(block, codes): the low nibbles of 256 codes, a byte each, into 128 bytes `qs` behind its start.

    Every 32 bytes hold 64 columns, the first 32 of them in their low nibbles.
    """

    @inline
    def put(block: int, codes: int) -> None:
        for j in range(4):
            low, high = load(u8x32, codes + 64 * j), load(u8x32, codes + 64 * j + 32)
            nibble = splat(u8x32, uint8(15))
            store(block + qs + 32 * j, (low & nibble) | ((high & nibble) << splat(u8x32, uint8(4))))

    return put
