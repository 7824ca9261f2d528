"""The kernel that rounds whole rows again, so that their outputs keep their mean, made of a format's words.

What for is said in `quant.encoders.offset`.
"""

from importlib import import_module
from typing import Any

from numba import float32, int64

from quant.codes.words import Body, Words
from quant.encoders.encoding import every, inverses
from quant.encoders.feedback import LANES
from quant.encoders.feedback_rows import CODES, MINS, SCALES, X, codes_word, nearest_word, scales_word
from quant.encoders.groups import transposed_word
from quant.jit.threads import share
from quant.jit.vectors import f32x16, fma, inline, load, store


def round_word(words: Words) -> Any:
    """The word round_group(x, offset, shares, means, scale, least, codes): the codes of a group of columns in sixteen
    rows, a row in a lane; returns the offset of their outputs behind it."""
    group, nearest = words.group, nearest_word(words)

    @inline
    def round_group(x: int, offset: Any, shares: int, means: int, scale: Any, least: Any, codes: int) -> Any:
        inverse = inverses(scale)
        for i in range(group):
            weight = load(f32x16, x + 4 * LANES * i)
            wanted = fma(offset, every(load(float32, shares + 4 * i)), weight)
            steps, code = nearest((wanted - least) * inverse)
            store(codes + LANES * i, code)
            error = weight - fma(steps, scale, least)
            offset = fma(error, every(load(float32, means + 4 * i)), offset)
        return offset

    return round_group


def offset(room: str) -> Body:
    """The kernel for rows whose blocks are there already, with their scales; only codes change.

    x: the weights, rows of n float32; shares and means: n float32 each; y: the blocks.
    """
    words: Words = import_module(f"quant.formats.{room}").WORDS
    width = 32 if words.codes32 else 256
    size = words.superblock_bytes * width // 256
    take_scales, put, round_group = scales_word(words), codes_word(room, width), round_word(words)
    transposed, length = transposed_word(16), words.group

    def body(x, n, shares, means, y, row_bytes, rows, part, parts, scratch):
        first, end = share((rows + LANES - 1) // LANES, 1, part, parts)
        for tile in range(first, end):
            row, valid = LANES * tile, min(int64(LANES), rows - LANES * tile)
            off = every(0.0)
            for column in range(0, n, width):
                block = y + row_bytes * row + size * (column // width)
                for lane in range(LANES):
                    take_scales(block + row_bytes * min(lane, valid - 1), lane, scratch)
                for at in range(0, width, 16):
                    transposed(x + 4 * (n * row + column + at), 4 * n, valid, scratch + X + 4 * LANES * at)
                for group in range(width // length):
                    here, scales = length * group, 4 * LANES * group
                    off = round_group(
                        scratch + X + 4 * LANES * here,
                        off,
                        shares + 4 * (column + here),
                        means + 4 * (column + here),
                        load(f32x16, scratch + SCALES + scales),
                        load(f32x16, scratch + MINS + scales),
                        scratch + CODES + LANES * here,
                    )
                for lane in range(valid):
                    put(block + row_bytes * lane, lane, scratch)

    return body
