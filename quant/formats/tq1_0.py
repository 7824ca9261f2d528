"""TQ1_0: 256 weights in 54 bytes; a weight is d * (code - 1), the code 0, 1 or 2."""

from typing import Any

import numpy as np
from numba import int32, uint8, uint32

from quant.codes.words import Words
from quant.encoders.encoding import inverse_of, put_scale
from quant.encoders.ternary import largest_magnitude, trits
from quant.jit.cpu import target
from quant.jit.vectors import (
    bitcast,
    convert,
    extract,
    f32x8,
    half,
    i32x16,
    inline,
    join,
    lanes,
    load,
    lookup256,
    numbers,
    select,
    splat,
    store,
    u8x16,
    u8x32,
    u8x64,
    u32x4,
    u32x16,
)

BLOCK = np.dtype([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")])
assert BLOCK.itemsize == 54
QS, QH, D, SIZE = 0, 48, 52, 54

# A byte over 256 is a fraction in base 3, whose digits are codes: multiplying by 3 modulo 256 takes the first one away.
# qs:  byte i < 32 holds columns i, 32 + i, 64 + i, 96 + i, 128 + i, the first in the first digit
#      byte 32 + i, i < 16, holds columns 160 + (i, 16 + i, 32 + i, 48 + i, 64 + i)
# qh:  byte i holds columns 240 + (i, 4 + i, 8 + i, 12 + i)


def codes64_by_multiplying() -> Any:
    """The word codes64, digit after digit."""
    last_four = numbers(u8x16, [1] * 4 + [3] * 4 + [9] * 4 + [27] * 4)

    @inline
    def thrice(v: Any) -> Any:
        return v + v + v

    @inline
    def first_digits(v: Any) -> Any:
        """The whole part of 3/256 of every byte."""
        one, two = splat(u8x64, uint8(1)), splat(u8x64, uint8(2))
        return select(
            v > splat(u8x64, uint8(170)), two, select(v > splat(u8x64, uint8(85)), one, splat(u8x64, uint8(0)))
        )

    @inline
    def codes64(block: int, j: int) -> Any:
        whole = load(u8x32, block + QS)
        if j < 2:
            first = join(whole, thrice(whole))
            return first_digits(first if j == 0 else thrice(thrice(first)))
        short = load(u8x16, block + QS + 32)
        if j == 2:
            return first_digits(join(thrice(thrice(thrice(thrice(whole)))), join(short, thrice(short))))
        third = thrice(thrice(short))
        fifth = thrice(thrice(third))
        last = bitcast(u8x16, splat(u32x4, load(uint32, block + QH))) * last_four()
        return first_digits(join(join(third, thrice(third)), join(fifth, last)))

    return codes64


def digit(byte: int, number: int) -> int:
    """One of the digits of a byte."""
    return byte * (1, 3, 9, 27, 81)[number] % 256 * 3 >> 8


def moved_word(places: list[int], digits: list[int]) -> Any:
    """The word moved(fours, fifths): for every four bytes of the result, which four of both are taken, and which of
    their digits."""
    pick, move = lanes(places), numbers(u32x16, [2 * number for number in digits])

    @inline
    def moved(fours: Any, fifths: Any) -> Any:
        picked = pick(join(bitcast(u32x16, fours), bitcast(u32x16, fifths)))
        return bitcast(u8x64, picked >> move()) & splat(u8x64, uint8(3))

    return moved


def codes64_by_looking_up() -> Any:
    """The word codes64, from tables: the first four digits of all bytes of a block at once, and their fifth."""
    first_four = lookup256([sum(digit(byte, number) << 2 * number for number in range(4)) for byte in range(256)])
    fifth = lookup256([digit(byte, 4) for byte in range(256)])
    whole, short, last = list(range(8)), list(range(8, 12)), [12] * 4
    whole5, short5 = ([16 + place for place in places] for places in (whole, short))
    quarter0 = moved_word(whole + whole, [0] * 8 + [1] * 8)
    quarter1 = moved_word(whole + whole, [2] * 8 + [3] * 8)
    quarter2 = moved_word(whole5 + short + short, [0] * 12 + [1] * 4)
    quarter3 = moved_word(short + short + short5 + last, [2] * 4 + [3] * 4 + [0] * 4 + [0, 1, 2, 3])

    @inline
    def codes64(block: int, j: int) -> Any:
        end = bitcast(u8x16, splat(u32x4, load(uint32, block + QH)))
        every = join(load(u8x32, block + QS), join(load(u8x16, block + QS + 32), end))
        fours, fifths = first_four(every), fifth(every)
        if j < 2:
            return quarter0(fours, fifths) if j == 0 else quarter1(fours, fifths)
        return quarter2(fours, fifths) if j == 2 else quarter3(fours, fifths)

    return codes64


codes64 = codes64_by_looking_up() if target().looks_bytes_up else codes64_by_multiplying()


@inline
def scales(block: int) -> Any:
    return splat(f32x8, half(block + D))


WORDS = Words(2, 32, SIZE, codes64, scales, zero=1)


# --- encoding -----------------------------------------------------------------------------------------------------

places_of_four = numbers(i32x16, [81] * 4 + [27] * 4 + [9] * 4 + [3] * 4)
second_half, second_quarter = lanes([*range(8, 16)] * 2), lanes([*range(4, 8)] * 4)


@inline
def five_digits(x: int, apart: int, inverse: float) -> Any:
    """i32x16: the codes of five columns that lie `apart` bytes from each other, as a number in base 3."""
    number = trits(x, inverse)
    for digit in range(1, 5):
        number = number * splat(i32x16, int32(3)) + trits(x + apart * digit, inverse)
    return number


@inline
def four_digits(x: int, inverse: float) -> Any:
    """The same of the last sixteen columns, four in each of the first four lanes; the fifth digit is 0."""
    placed = trits(x, inverse) * places_of_four()
    halves = placed + second_half(placed)
    return halves + second_quarter(halves)


@inline
def fractions(number: Any) -> Any:
    """Of 3**5, over 256, rounded up so that taking digits away gives them back."""
    above = number * splat(i32x16, int32(256)) + splat(i32x16, int32(242))
    return convert(u8x16, above / splat(i32x16, int32(243)))


@inline
def encode(x: int, importance: int, n: int, y: int, scratch: int) -> None:
    """The codes nearest to a row's weights, as `quant.encoders.encode` asks for them."""
    for block in range(n // 256):
        weights, place = x + 1024 * block, y + SIZE * block
        d = largest_magnitude(weights)
        store(place + QS, fractions(five_digits(weights, 128, inverse_of(d))))
        store(place + QS + 16, fractions(five_digits(weights + 64, 128, inverse_of(d))))
        store(place + QS + 32, fractions(five_digits(weights + 640, 64, inverse_of(d))))
        last = fractions(four_digits(weights + 960, inverse_of(d)))
        store(place + QH, extract(bitcast(u32x4, last), 0))
        put_scale(place + D, d)


def encoder(effort: str) -> Any:
    """The word `encode`: d says all, so no effort finds more."""
    return encode
