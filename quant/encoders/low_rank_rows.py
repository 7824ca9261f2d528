"""The kernel that rounds whole rows again, with what is carried in a few directions, made of a format's words.

What for is said in `quant.encoders.low_rank`. What is carried along a row makes every column wait for the one before
it: as many rows go side by side as the processor has sums in hand meanwhile. It is looked at every few columns, or
reading and writing it would take longer than the sums.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from llvmlite import ir
from numba import float32, int64, types

from quant.codes.words import Body, Words
from quant.encoders.encoding import inverses
from quant.encoders.feedback_rows import codes_word, nearest_word, scales_word
from quant.encoders.groups import transposed_word
from quant.encoders.low_rank import LANES, STEP
from quant.jit.emit import I32, I64, cut, emit_load
from quant.jit.threads import share
from quant.jit.vectors import Vector, f32x16, fma, inline, intrinsic, load, splat, store, word

f32, u8 = Vector(types.float32, LANES), Vector(types.uint8, LANES)
WIDE = 4 * LANES
# In scratch: the weights of a group of columns and their codes, a lane for each row; a row of lanes for each group;
# the codes of a block of every row.
X, CODES, SCALES, INVERSES, MINS, ROWS = (WIDE * at for at in (0, 32, 40, 56, 72, 88))
SPARE = ROWS + 256 * LANES
CARRIED = SPARE + 256  # a row of lanes for each direction


@intrinsic
def turn_codes(typingctx: Any, codes: Any, out: Any) -> Any:
    """turn_codes(codes, out): sixteen columns of LANES bytes as LANES rows, 256 bytes apart, of sixteen bytes.

    Columns i and i + 8 become neighbours, byte by byte; done four times, that turns squares of sixteen.
    """

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        source, place = args
        columns = [emit_load(b, u8.llvm, b.add(source, I64(LANES * i))) for i in range(16)]
        pairs = [[first + i + more for first in range(0, LANES, 16) for i in range(8) for more in (0, LANES)]]
        pairs += [[lane + 8 for lane in pairs[0]]]
        masks = [ir.Constant(ir.VectorType(I32, LANES), lanes) for lanes in pairs]
        for _ in range(4):
            columns = [b.shuffle_vector(columns[i], columns[i + 8], mask) for i in range(8) for mask in masks]
        for row in range(LANES):
            v = cut(b, columns[row % 16], row // 16 * 16, 16)
            b.store(v, b.inttoptr(b.add(place, I64(256 * row)), v.type.as_pointer()), align=1)
        return place

    return word(types.void, [types.int64, types.int64], emit)


def round_word(words: Words) -> Any:
    """The word round_group(scratch, group, gains, couplings, directions, rank): the codes of a group of columns, a row
    in a lane, with what is carried before it, and behind it."""
    length, zero, nearest = words.group, words.zero, nearest_word(words, LANES)

    @inline
    def nothing() -> Any:
        return splat(f32, float32(0.0))

    @inline
    def add(table: int, factor: Any, sums: Any) -> Any:
        return fma(factor, splat(f32, load(float32, table)), sums)

    @inline
    def round_column(scratch: int, group: int, column: int, shift: Any) -> Any:
        at = scratch + WIDE * group
        scale, inverse, least = load(f32, at + SCALES), load(f32, at + INVERSES), load(f32, at + MINS)
        weight = load(f32, scratch + X + WIDE * column)
        wanted = weight + shift if zero else weight + shift - least
        steps, code = nearest(wanted * inverse)
        store(scratch + CODES + LANES * column, code)
        return weight - (steps * scale if zero else fma(steps, scale, least))

    @inline
    def round_group(scratch: int, group: int, gains: int, couplings: int, directions: int, rank: int) -> None:
        for column in range(0, length, STEP):
            table, pairs = 4 * rank * column, couplings + 4 * STEP * column
            a, b, c, d = nothing(), nothing(), nothing(), nothing()
            for k in range(rank):
                carried, at = load(f32, scratch + CARRIED + WIDE * k), gains + table + 4 * STEP * k
                a, b = add(at, carried, a), add(at + 4, carried, b)
                c, d = add(at + 8, carried, c), add(at + 12, carried, d)
            a = round_column(scratch, group, column, a)
            b = round_column(scratch, group, column + 1, add(pairs + 4, a, b))
            c = round_column(scratch, group, column + 2, add(pairs + 24, b, add(pairs + 8, a, c)))
            d = add(pairs + 44, c, add(pairs + 28, b, add(pairs + 12, a, d)))
            d = round_column(scratch, group, column + 3, d)
            for k in range(rank):
                place, at = scratch + CARRIED + WIDE * k, directions + table + 4 * STEP * k
                ab = add(at + 4, b, add(at, a, load(f32, place)))
                store(place, add(at + 12, d, add(at + 8, c, ab)))

    return round_group


def low_rank(room: str) -> Body:
    """The kernel for rows whose blocks are there already, with their scales; only codes change.

    x: the weights, rows of n float32; gains and directions: float32 (n / STEP, rank, STEP); couplings: float32
    (n, STEP), how much of a column's error the columns of its step get; y: the blocks.
    """
    words: Words = import_module(f"quant.formats.{room}").WORDS
    width = 32 if words.codes32 else 256
    size, length = words.superblock_bytes * width // 256, words.group
    take_scales, put, round_group = scales_word(words, WIDE), codes_word(room, width), round_word(words)
    transposed = transposed_word(length, WIDE)

    def body(x, n, gains, couplings, directions, rank, y, row_bytes, rows, part, parts, scratch):
        first, end = share((rows + LANES - 1) // LANES, 1, part, parts)
        for tile in range(first, end):
            row, valid = LANES * tile, min(int64(LANES), rows - LANES * tile)
            for k in range(rank):
                store(scratch + CARRIED + WIDE * k, splat(f32, float32(0.0)))
            for column in range(0, n, width):
                block = y + row_bytes * row + size * (column // width)
                for lane in range(LANES):
                    place = scratch + 4 * lane
                    take_scales(block + row_bytes * min(lane, valid - 1), place + SCALES, place + MINS, scratch + SPARE)
                for at in range(0, WIDE * width // length, 64):
                    store(scratch + INVERSES + at, inverses(load(f32x16, scratch + SCALES + at)))
                for group in range(width // length):
                    here = column + length * group
                    for lane in range(0, LANES, 16):
                        place = row + min(lane, valid - 1)
                        count = max(min(int64(16), valid - lane), 1)
                        transposed(x + 4 * (n * place + here), 4 * n, count, scratch + X + 4 * lane)
                    table = 4 * rank * here
                    round_group(scratch, group, gains + table, couplings + 4 * STEP * here, directions + table, rank)
                    for at in range(0, length, 16):
                        turn_codes(scratch + CODES + LANES * at, scratch + ROWS + length * group + at)
                for lane in range(valid):
                    put(block + row_bytes * lane, scratch + ROWS + 256 * lane)

    return body
