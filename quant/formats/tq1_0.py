"""TQ1_0: 256 weights in 54 bytes. A weight is d * (code - 1), where the code is 0, 1 or 2."""

from typing import Any

import numpy as np
from numba import int32, uint8, uint32

from quant.encoders.ternary import largest_magnitude, trits
from quant.encoders.vector_math import safe_reciprocal, store_scale
from quant.jit.cpu import target
from quant.jit.vectors import (
    bitcast,
    concat,
    convert,
    extract,
    i32x16,
    inline,
    load,
    make_constant,
    make_lookup256,
    make_shuffle,
    select,
    splat,
    store,
    u8x16,
    u8x32,
    u8x64,
    u32x4,
    u32x16,
)
from quant.packing.format_spec import FormatSpec
from quant.packing.half_scales import make_superblock_scale

BLOCK = np.dtype([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")])
assert BLOCK.itemsize == 54
QS, QH, D, SIZE = 0, 48, 52, 54

# A byte divided by 256 is a fraction in base 3, whose digits (trits) are the codes. Multiplying the byte by 3 modulo
# 256 removes the first trit.
# qs:  byte i < 32 holds columns i, 32 + i, 64 + i, 96 + i, 128 + i, the first in the first digit
#      byte 32 + i, i < 16, holds columns 160 + (i, 16 + i, 32 + i, 48 + i, 64 + i)
# qh:  byte i holds columns 240 + (i, 4 + i, 8 + i, 12 + i)


def make_codes64_by_multiplication() -> Any:
    """Return codes64, which extracts the trits one by one."""
    last_four = make_constant(u8x16, [1] * 4 + [3] * 4 + [9] * 4 + [27] * 4)

    @inline
    def thrice(v: Any) -> Any:
        return v + v + v

    @inline
    def first_digits(v: Any) -> Any:
        """Return the first trit of every byte: floor(3 * byte / 256)."""
        one, two = splat(u8x64, uint8(1)), splat(u8x64, uint8(2))
        return select(
            v > splat(u8x64, uint8(170)), two, select(v > splat(u8x64, uint8(85)), one, splat(u8x64, uint8(0)))
        )

    @inline
    def codes64(block: int, j: int) -> Any:
        whole = load(u8x32, block + QS)
        if j < 2:
            first = concat(whole, thrice(whole))
            return first_digits(first if j == 0 else thrice(thrice(first)))
        short = load(u8x16, block + QS + 32)
        if j == 2:
            return first_digits(concat(thrice(thrice(thrice(thrice(whole)))), concat(short, thrice(short))))
        third = thrice(thrice(short))
        fifth = thrice(thrice(third))
        last = bitcast(u8x16, splat(u32x4, load(uint32, block + QH))) * last_four()
        return first_digits(concat(concat(third, thrice(third)), concat(fifth, last)))

    return codes64


def trit_of_byte(byte: int, number: int) -> int:
    """Return one of the five trits of a byte."""
    return byte * (1, 3, 9, 27, 81)[number] % 256 * 3 >> 8


def make_pick_trits(positions: list[int], digits: list[int]) -> Any:
    """Return the inlined function pick_trits(first_four_trits, fifth_trits).

    For each four bytes of the result, `positions` selects four bytes of both inputs, and `digits` the trit within them.
    """
    pick, move = make_shuffle(positions), make_constant(u32x16, [2 * number for number in digits])

    @inline
    def pick_trits(first_four_trits: Any, fifth_trits: Any) -> Any:
        picked = pick(concat(bitcast(u32x16, first_four_trits), bitcast(u32x16, fifth_trits)))
        return bitcast(u8x64, picked >> move()) & splat(u8x64, uint8(3))

    return pick_trits


def make_codes64_by_lookup() -> Any:
    """Return codes64, which looks the trits of all bytes of a block up: first four trits at once, then the fifth."""
    first_four = make_lookup256(
        [sum(trit_of_byte(byte, number) << 2 * number for number in range(4)) for byte in range(256)]
    )
    fifth = make_lookup256([trit_of_byte(byte, 4) for byte in range(256)])
    whole, short, last = list(range(8)), list(range(8, 12)), [12] * 4
    whole5, short5 = ([16 + position for position in positions] for positions in (whole, short))
    quarter0 = make_pick_trits(whole + whole, [0] * 8 + [1] * 8)
    quarter1 = make_pick_trits(whole + whole, [2] * 8 + [3] * 8)
    quarter2 = make_pick_trits(whole5 + short + short, [0] * 12 + [1] * 4)
    quarter3 = make_pick_trits(short + short + short5 + last, [2] * 4 + [3] * 4 + [0] * 4 + [0, 1, 2, 3])

    @inline
    def codes64(block: int, j: int) -> Any:
        end = bitcast(u8x16, splat(u32x4, load(uint32, block + QH)))
        every = concat(load(u8x32, block + QS), concat(load(u8x16, block + QS + 32), end))
        first_four_trits, fifth_trits = first_four(every), fifth(every)
        if j < 2:
            return quarter0(first_four_trits, fifth_trits) if j == 0 else quarter1(first_four_trits, fifth_trits)
        return quarter2(first_four_trits, fifth_trits) if j == 2 else quarter3(first_four_trits, fifth_trits)

    return codes64


codes64 = make_codes64_by_lookup() if target().has_byte_permute else make_codes64_by_multiplication()


SPEC = FormatSpec(
    bits=2,
    group_size=32,
    superblock_bytes=SIZE,
    codes64=codes64,
    scales=make_superblock_scale(D),
    zero_point=1,
)


# --- encoding -----------------------------------------------------------------------------------------------------

powers_of_three = make_constant(i32x16, [81] * 4 + [27] * 4 + [9] * 4 + [3] * 4)
second_half, second_quarter = make_shuffle([*range(8, 16)] * 2), make_shuffle([*range(4, 8)] * 4)


@inline
def pack_five_trits(x: int, stride: int, inverse: float) -> Any:
    """Return the codes of five columns, `stride` bytes from each other, as a number in base 3: i32x16."""
    number = trits(x, inverse)
    for digit in range(1, 5):
        number = number * splat(i32x16, int32(3)) + trits(x + stride * digit, inverse)
    return number


@inline
def pack_four_trits(x: int, inverse: float) -> Any:
    """Return the same for the last sixteen columns, four in each of the first four lanes. The fifth trit is 0."""
    shifted = trits(x, inverse) * powers_of_three()
    halves = shifted + second_half(shifted)
    return halves + second_quarter(halves)


@inline
def to_base3_fraction(number: Any) -> Any:
    """Return number / 3**5 as a fraction of 256, rounded up so that extracting the trits is exact."""
    above = number * splat(i32x16, int32(256)) + splat(i32x16, int32(242))
    return convert(u8x16, above / splat(i32x16, int32(243)))


@inline
def encode_row(x: int, importance: int, n: int, y: int, scratch: int) -> None:
    """Encode a row with the codes nearest to its weights: see `quant.encoders.encoder`."""
    for block in range(n // 256):
        weights, block_address = x + 1024 * block, y + SIZE * block
        d = largest_magnitude(weights)
        store(block_address + QS, to_base3_fraction(pack_five_trits(weights, 128, safe_reciprocal(d))))
        store(block_address + QS + 16, to_base3_fraction(pack_five_trits(weights + 64, 128, safe_reciprocal(d))))
        store(block_address + QS + 32, to_base3_fraction(pack_five_trits(weights + 640, 64, safe_reciprocal(d))))
        last = to_base3_fraction(pack_four_trits(weights + 960, safe_reciprocal(d)))
        store(block_address + QH, extract(bitcast(u32x4, last), 0))
        store_scale(block_address + D, d)


def make_row_encoder(effort: str) -> Any:
    """Return the inlined function that encodes a row. The largest magnitude determines d, so `effort` is ignored."""
    return encode_row
