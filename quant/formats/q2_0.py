"""Q2_0: 64 weights in 18 bytes; a weight is d * (code - 1), the code of 2 bits: -d, 0, d or 2d."""

from typing import Any

import numpy as np
from numba import float32, int64, uint8, uint32

from quant.codes.words import Words
from quant.encoders.encoding import every, inverse_of, put_scale
from quant.encoders.searches.tiles import bounded, counted, unit_of
from quant.jit.vectors import (
    absolute,
    bitcast,
    convert,
    f16x8,
    f32x8,
    f32x16,
    fma,
    gather,
    half,
    i32x16,
    inline,
    largest,
    load,
    maximum,
    minimum,
    pieces,
    rint,
    splat,
    store,
    total,
    u8x8,
    u8x16,
    u8x32,
    u8x64,
    u32x8,
    u32x16,
)

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
assert BLOCK.itemsize == 18
QS, SIZE = 2, 18

# qs: byte i holds columns 4i .. 4i + 3, the first in the lowest bits
eight_scales = pieces(f16x8, [SIZE * (group // 2) for group in range(8)], 2, 4 * SIZE)


def apart_word(kind: Any) -> Any:
    """The word apart(fours): the four codes of each byte, the numbers in a vector of `kind`, as four bytes."""

    @inline
    def apart(fours: Any) -> Any:
        pairs = fours | (fours << splat(kind, uint32(6)))
        return (pairs | (pairs << splat(kind, uint32(12)))) & splat(kind, uint32(0x03030303))

    return apart


apart16, apart8 = apart_word(u32x16), apart_word(u32x8)


@inline
def codes64(superblock: int, j: int) -> Any:
    return bitcast(u8x64, apart16(convert(u32x16, load(u8x16, superblock + SIZE * j + QS))))


@inline
def codes32(row: int, k: int) -> Any:
    return bitcast(u8x32, apart8(convert(u32x8, load(u8x8, row + SIZE * (k // 2) + QS + 8 * (k % 2)))))


@inline
def scales(superblock: int) -> Any:
    return convert(f32x8, eight_scales(superblock))


@inline
def scale(row: int, g: int) -> Any:
    return half(row + SIZE * (g // 2))


WORDS = Words(2, 32, 4 * SIZE, codes64, scales, codes32=codes32, scale=scale, zero=1)

# --- encoding -----------------------------------------------------------------------------------------------------

# What the largest weight may be of d: near 1 for three values, near 2 for four.
TRIED = {"fast": [1.0], "normal": [1.0, -1.0, *(sign * t for t in np.linspace(1.2, 2.6, 8) for sign in (1, -1))]}


@inline
def numbers_of(x: Any, inverse: float) -> Any:
    """f32x16: -1, 0, 1 or 2, the nearest to x * inverse."""
    return minimum(maximum(rint(x * every(inverse)), every(-1.0)), every(2.0))


@inline
def part_of(x: int, part: int) -> Any:
    """Sixteen weights of a block."""
    return bounded(load(f32x16, x + 64 * part))


def best_scale_word(effort: str) -> Any:
    """The word best_scale(x, importance, first, unit): the d of a block with the least error. Under the numbers v that
    some d gives, it is (sum w x v) / (sum w v^2), and the error is less where (sum w x v)^2 / (sum w v^2) is more."""
    shares = tuple(1 / t for t in TRIED[effort])

    @inline
    def best_scale(x: int, importance: int, first: int, unit: float) -> Any:
        sizes = absolute(part_of(x, 0))
        for part in range(1, 4):
            sizes = maximum(sizes, absolute(part_of(x, part)))
        most = largest(sizes)
        best, gain = float32(0.0), float32(0.0)
        for share in shares:
            inverse, product, norm = inverse_of(most * float32(share)), every(0.0), every(0.0)
            for part in range(4):
                v, w = numbers_of(part_of(x, part), inverse), counted(importance, first + 16 * part, unit)
                product, norm = fma(v * w, part_of(x, part), product), fma(v * w, v, norm)
            p, q = total(product), total(norm)
            if q > float32(0.0) and p * (p / q) > gain:
                best, gain = p / q, p * (p / q)
        return best

    return best_scale


@inline
def put_codes(place: int, x: int, inverse: float, scratch: int) -> None:
    """The 64 codes of a block."""
    for part in range(4):
        codes = convert(i32x16, numbers_of(part_of(x, part), inverse) + every(1.0))
        store(scratch + 16 * part, convert(u8x16, codes))
    fours = splat(u8x16, uint8(0))
    for place_in_byte in range(4):
        codes = gather(u8x16, scratch + place_in_byte, int64(4))
        fours = fours | (codes << splat(u8x16, uint8(2 * place_in_byte)))
    store(place, fours)


def encoder(effort: str) -> Any:
    """The word `encode` of `quant.encoders.encode`."""
    best_scale = best_scale_word(effort)

    @inline
    def encode(x: int, importance: int, n: int, y: int, scratch: int) -> None:
        unit = unit_of(importance, n)
        for block in range(n // 64):
            numbers, place = x + 256 * block, y + SIZE * block
            d = best_scale(numbers, importance, 64 * block, unit)
            put_codes(place + QS, numbers, inverse_of(put_scale(place, d)), scratch)

    return encode
