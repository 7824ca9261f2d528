"""The nearest codes for scales that a block has already: the last step of every search."""

from typing import Any

from numba import float32

from quant.codes.words import Words
from quant.encoders.encoding import every, inverse_of
from quant.jit.vectors import convert, f32x16, i32x16, inline, load, maximum, minimum, rint, splat, store, u8x16

SCALES, MINS, CODES = 0, 64, 128  # in scratch


def nearest_word(words: Words, put_codes: Any) -> Any:
    """The word put_nearest(superblock, x, scratch): the codes that come closest to 256 floats at x."""
    scales, mins, group, zero = words.scales, words.mins or words.scales, words.group, words.zero
    top = float32(2**words.bits - 1)

    @inline
    def put_nearest(superblock: int, x: int, scratch: int) -> None:
        store(scratch + SCALES, scales(superblock))
        store(scratch + MINS, mins(superblock))
        for part in range(16):
            at = 16 * part // group * 4
            least = float32(0.0) if zero else load(float32, scratch + MINS + at)
            inverse = inverse_of(load(float32, scratch + SCALES + at))
            steps = (load(f32x16, x + 64 * part) - every(least)) * every(inverse)
            code = minimum(maximum(rint(steps) + every(zero), every(0.0)), splat(f32x16, top))
            store(scratch + CODES + 16 * part, convert(u8x16, convert(i32x16, code)))
        put_codes(superblock, scratch + CODES)

    return put_nearest
