"""Q8_0: 32 weights in 34 bytes; a weight is d * q, q a signed byte."""

from typing import Any

import numpy as np
from numba import float32, uint8

from quant.codes.words import Field, Runs, Words
from quant.encoders.encoding import inverse_of, put_scale, rounded
from quant.jit.vectors import (
    absolute,
    convert,
    f16x8,
    f32x8,
    f32x16,
    half,
    i8x16,
    i32x16,
    inline,
    join,
    largest,
    load,
    maximum,
    minimum,
    pieces,
    splat,
    store,
    u8x32,
    u8x64,
)

BLOCK = np.dtype([("d", "<f2"), ("qs", "i1", 32)])
assert BLOCK.itemsize == 34
D, QS, SIZE = 0, 2, 34

# A code is q + 128, which flipping the sign bit gives.
FLIP = uint8(128)


@inline
def codes64(block: int, j: int) -> Any:
    at = block + 2 * j * SIZE + QS
    return join(load(u8x32, at), load(u8x32, at + SIZE)) ^ splat(u8x64, FLIP)


eight_scales = pieces(f16x8, range(D, 8 * SIZE, SIZE), 2, 8 * SIZE)


@inline
def scales(block: int) -> Any:
    return convert(f32x8, eight_scales(block))


@inline
def codes32(row: int, k: int) -> Any:
    return load(u8x32, row + SIZE * k + QS) ^ splat(u8x32, FLIP)


@inline
def scale(row: int, g: int) -> Any:
    return half(row + SIZE * g + D)


@inline
def put32(block: int, codes: Any) -> None:
    """Write 32 codes, u8x32, under the scale that is there."""
    store(block + QS, codes ^ splat(u8x32, FLIP))


@inline
def to_bytes(v: Any) -> Any:
    """The nearest signed bytes of an f32x16, which is within -127 .. 127 but for a last bit."""
    limit = splat(f32x16, float32(127.0))
    return convert(i8x16, convert(i32x16, minimum(maximum(rounded(v), splat(f32x16, float32(-127.0))), limit)))


def encoder(effort: str) -> Any:
    """The word encode: see `quant.encoders.encode`. The largest number of a block has code 127, whatever the
    importance."""

    @inline
    def encode(x: int, importance: int, n: int, y: int, scratch: int) -> None:
        for block in range(n // 32):
            first, second = load(f32x16, x + 128 * block), load(f32x16, x + 128 * block + 64)
            d = largest(maximum(absolute(first), absolute(second))) / float32(127.0)
            inverse = splat(f32x16, inverse_of(d))
            put_scale(y + SIZE * block + D, d)
            store(y + SIZE * block + QS, join(to_bytes(first * inverse), to_bytes(second * inverse)))

    return encode


WORDS = Words(
    8, 32, 8 * SIZE, codes64, scales, codes32=codes32, scale=scale, zero=128,
    runs=Runs(((Field(QS, bits=8),), (Field(QS + 16, bits=8),)), SIZE, zero=128, halves=1),
)  # fmt: skip
