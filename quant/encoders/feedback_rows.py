"""The kernel that rounds the columns of blocks one after the other and passes errors on, made of a format's words.

What for is said in `quant.encoders.feedback`.
"""

from importlib import import_module
from typing import Any

from numba import float32, int64, types, uint8

from quant.codes.words import Body, Words
from quant.encoders.encoding import every, inverses
from quant.encoders.feedback import LANES
from quant.encoders.searches.table import staircase
from quant.jit.threads import share
from quant.jit.vectors import (
    Vector,
    convert,
    f32x16,
    fma,
    inline,
    load,
    maximum,
    minimum,
    rint,
    splat,
    store,
    u8x32,
)

WIDE = 4 * LANES * 256
X, W, CODES = 0, WIDE, 2 * WIDE  # in scratch: what is wanted, weights and codes, a row of lanes for each column
SCALES, MINS = CODES + LANES * 256, CODES + LANES * 256 + 4 * LANES * 16  # a row of lanes for each group
ROW = MINS + 4 * LANES * 16  # the codes, or the scales, of one row


def scales_word(words: Words, pitch: int) -> Any:
    """The word take_scales(block, scales, mins, spare): the scales and mins of a block, each `pitch` bytes behind the
    one before it; 128 bytes are spare."""
    scales_of, mins_of = words.scales, words.mins or words.scales
    scale, least = words.scale, words.least or words.scale
    groups, zero = words.groups, words.zero

    @inline
    def of_superblock(block: int, scales: int, mins: int, spare: int) -> None:
        store(spare, scales_of(block))
        store(spare + 64, mins_of(block))
        for group in range(groups):
            store(scales + pitch * group, load(float32, spare + 4 * group))
            store(mins + pitch * group, float32(0.0) if zero else load(float32, spare + 64 + 4 * group))

    @inline
    def of_block(block: int, scales: int, mins: int, spare: int) -> None:
        store(scales, scale(block, 0))
        store(mins, float32(0.0) if zero else least(block, 0))

    return of_block if words.codes32 else of_superblock


def codes_word(room: str, width: int) -> Any:
    """The word put(block, codes): the codes of a block, a byte each."""
    module = import_module(f"quant.formats.{room}")
    if width == 256:
        return module.put_codes
    put32 = module.put32

    @inline
    def put(block: int, codes: int) -> None:
        put32(block, load(u8x32, codes))

    return put


def nearest_word(words: Words, lanes: int = LANES) -> Any:
    """The word nearest(t): of weights in units of their scales, the nearest numbers that codes stand for, and what
    blocks hold of these codes, a byte in each lane."""
    floats, ints, codes = (Vector(element, lanes) for element in (types.float32, types.int32, types.uint8))
    zero, top = words.zero, 2**words.bits - 1

    @inline
    def nearest_code(t: Any) -> Any:
        low, high = splat(floats, float32(-zero)), splat(floats, float32(top - zero))
        steps = minimum(maximum(rint(t), low), high)
        return steps, convert(codes, convert(ints, steps - low))

    if not words.table:
        return nearest_code
    value_of = staircase(words.table, floats, words.table)
    place_of = staircase(words.table, ints, range(len(words.table)))

    @inline
    def nearest_entry(t: Any) -> Any:
        return value_of(t), convert(codes, place_of(t))

    return nearest_entry


def round_word(words: Words, width: int) -> Any:
    """The word round_columns(a, a_stride, errors, scratch): sixteen rows, column by column.

    Of a column's error, that of its weights and not of what was wanted, the columns behind it get a[i][j] each.
    """
    group, nearest = words.group, nearest_word(words)

    @inline
    def round_columns(a: int, a_stride: int, errors: int, scratch: int) -> None:
        for i in range(width):
            at = 4 * LANES * (i // group)
            scale, least = load(f32x16, scratch + SCALES + at), load(f32x16, scratch + MINS + at)
            steps, code = nearest((load(f32x16, scratch + X + 4 * LANES * i) - least) * inverses(scale))
            store(scratch + CODES + LANES * i, code)
            error = load(f32x16, scratch + W + 4 * LANES * i) - fma(steps, scale, least)
            store(errors + 4 * LANES * i, error)
            for j in range(i + 1, width):
                place = scratch + X + 4 * LANES * j
                store(place, fma(error, every(load(float32, a + a_stride * i + 4 * j)), load(f32x16, place)))

    return round_columns


def feedback(room: str) -> Body:
    """The kernel for one block of each of some rows, whose scales are there already.

    x: what is wanted of them, in rows x_stride bytes apart; w: their weights, in rows w_stride bytes apart; a: the
    square of the triangle that belongs to their columns, in rows a_stride bytes apart; y: the blocks; errors: float32
    (ceil(rows / LANES), columns, LANES), those of the weights.
    """
    words: Words = import_module(f"quant.formats.{room}").WORDS
    width = 32 if words.codes32 else 256
    take_scales, put = scales_word(words, 4 * LANES), codes_word(room, width)
    round_columns = round_word(words, width)

    def body(x, x_stride, w, w_stride, a, a_stride, y, row_bytes, rows, errors, part, parts, scratch):
        first, end = share((rows + LANES - 1) // LANES, 1, part, parts)
        for tile in range(first, end):
            valid = min(int64(LANES), rows - LANES * tile)
            for lane in range(LANES):
                row = LANES * tile + min(lane, valid - 1)
                place = scratch + 4 * lane
                take_scales(y + row_bytes * row, place + SCALES, place + MINS, scratch + ROW)
                for column in range(width):
                    at = 4 * (LANES * column + lane)
                    store(scratch + X + at, load(float32, x + x_stride * row + 4 * column))
                    store(scratch + W + at, load(float32, w + w_stride * row + 4 * column))
            round_columns(a, a_stride, errors + 4 * LANES * width * tile, scratch)
            for lane in range(valid):
                for column in range(width):
                    store(scratch + ROW + column, load(uint8, scratch + CODES + LANES * column + lane))
                put(y + row_bytes * (LANES * tile + lane), scratch + ROW)

    return body
