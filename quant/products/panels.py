"""Matrix multiplication for many tokens: rows are unpacked once into panels, which the register tile takes in turn.

A panel is R rows in the tile's own order (`quant.products.tile`). It is made in two steps: a stretch of each row is
written down as plain codes, scales and mins; then the rows are transposed, in registers. Some panels are made at a
time, as many as a core's cache holds and of long rows a few more, so that the activations are read from far away less
often.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llvmlite import ir
from numba import float32, int64, types, uint8

from quant.codes.words import Body, Words, words_of
from quant.jit.cpu import target
from quant.jit.emit import I32, I64, emit_load, joined
from quant.jit.threads import share
from quant.jit.vectors import Vector, extract, inline, intrinsic, load, prefetch, splat, store, u8x32, u8x64, word
from quant.products.activations import number_of, slot, superblocks_of
from quant.products.base import put_base
from quant.products.layout import (
    AT_LEAST,
    CACHE_BYTES,
    CODES_STEP,
    FEW_TILES,
    PLACES,
    SCALES_STEP,
    STRETCH,
    ZERO,
    record_bytes,
)
from quant.products.nibble_panels import unpack_blocks_word
from quant.products.tile import Tile, tile_word, total_of_places


def shape_of(words: Words, passes: int) -> Tile:
    """The whole tile of a format."""
    here = target()
    moved = words.zero > 0 and here.takes_any_byte
    bits, zero = (8, ZERO) if moved else (words.bits, words.zero)
    return Tile(here.rows, here.tokens, here.tokens, passes, words.group, bits, zero)


# --- unpacking ----------------------------------------------------------------------------------------------------


def write_down_word(words: Words, zero: int) -> Any:
    """The word write_down(row, first, end, codes, scales, mins): columns first .. end of a row, as plain numbers; codes
    are moved to have that zero."""
    codes64, scales_of, mins_of, moved = words.codes64, words.scales, words.mins or words.scales, zero - words.zero
    codes32, scale_of, least_of = words.codes32, words.scale, words.least or words.scale
    superblock_bytes, groups, group = words.superblock_bytes, words.groups, words.group

    @inline
    def superblocks(row: int, first: int, end: int, codes: int, scales: int, mins: int) -> None:
        for block in range(first // 256, end // 256):
            at, number = row + block * superblock_bytes, block - first // 256
            for j in range(4):
                store(codes + 256 * number + 64 * j, codes64(at, j) + splat(u8x64, uint8(moved)))
            store(scales + 4 * groups * number, scales_of(at))
            if not zero:
                store(mins + 4 * groups * number, mins_of(at))

    @inline
    def with_rest(row: int, first: int, end: int, codes: int, scales: int, mins: int) -> None:
        superblocks(row, first, end, codes, scales, mins)
        for k in range(end // 256 * 8, end // 32):
            store(codes + 32 * k - first, codes32(row, k) + splat(u8x32, uint8(moved)))
        for g in range(end // 256 * groups, end // group):
            store(scales + 4 * (g - first // group), scale_of(row, g))
            if not zero:
                store(mins + 4 * (g - first // group), least_of(row, g))

    return superblocks if codes32 is None else with_rest


def transpose_word(rows: int) -> Any:
    """The word transpose(source, step, place, pair_step, single_step): eight numbers of 32 bits of R rows, `step` bytes
    apart, become eight vectors of R: vector i at pair_step * (i // 2) + single_step * (i % 2).

    Four numbers of rows i, i + 4, i + 8, ... are loaded as the parts of one vector; interleaving four such vectors,
    part by part, first by single numbers and then by pairs, leaves the rows in their order.
    """
    parts, kind = rows // 4, ir.VectorType(I32, rows)

    def in_each_part(pattern: Sequence[int]) -> ir.Constant:
        """Lanes of two vectors, the second's from 4 on, in every part of four."""
        picks = [4 * part + pick % 4 + rows * (pick // 4) for part in range(parts) for pick in pattern]
        return ir.Constant(kind, picks)

    singles = [in_each_part([0, 4, 1, 5]), in_each_part([2, 6, 3, 7])]
    pairs = [in_each_part([0, 1, 4, 5]), in_each_part([2, 3, 6, 7])]

    def strided(b: ir.IRBuilder, source: ir.Value, step: ir.Value, first: int) -> ir.Value:
        """Four numbers of every fourth row."""
        pieces = [
            emit_load(b, ir.VectorType(I32, 4), b.add(source, b.mul(step, I64(row)))) for row in range(first, rows, 4)
        ]
        return joined(b, pieces)

    def four_vectors(b: ir.IRBuilder, source: ir.Value, step: ir.Value) -> list[ir.Value]:
        v0, v1, v2, v3 = (strided(b, source, step, first) for first in range(4))
        firsts, seconds = ([b.shuffle_vector(v, w, mask) for mask in singles] for v, w in ((v0, v1), (v2, v3)))
        return [b.shuffle_vector(v, w, mask) for v, w in zip(firsts, seconds, strict=True) for mask in pairs]

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        source, step, place, pair_step, single_step = args
        for first in (0, 4):
            for i, vector in enumerate(four_vectors(b, b.add(source, I64(4 * first)), step), first):
                at = b.add(place, b.add(b.mul(pair_step, I64(i // 2)), b.mul(single_step, I64(i % 2))))
                b.store(vector, b.inttoptr(at, kind.as_pointer()), align=4)
        return place

    @intrinsic
    def transpose(typingctx: Any, source: Any, step: Any, place: Any, pair_step: Any, single_step: Any) -> Any:
        return word(types.void, [types.int64] * 5, emit)

    return transpose


def codes_word(rows: int) -> Any:
    """The word put_codes(source, step, place): 32 bytes of each of R rows, `step` bytes apart, D by D."""
    transpose = transpose_word(rows)

    @inline
    def put_fours(source: int, step: int, place: int) -> None:
        transpose(source, step, place, 8 * rows, 4 * rows)

    @inline
    def put_eights(source: int, step: int, place: int) -> None:
        for i in range(rows):
            for k in range(4):
                store(place + 8 * (rows * k + i), load(int64, source + i * step + 8 * k))

    return {4: put_fours, 8: put_eights}[target().depth]


def scales_word(shape: Tile) -> Any:
    """The word put_scales(source, count, panel, room): the scales of `count` groups of all rows, or the mins, into
    records, whose places are `room` records apart; `panel` is where the first of them belongs.
    """
    rows, parts, record = shape.rows, shape.parts, shape.panel_record
    transpose = transpose_word(rows)

    @inline
    def put_scales(source: int, count: int, panel: int, room: int) -> None:
        apart = record * room
        pair_step, single_step = (2 * apart, apart) if parts == 1 else (apart, 4 * rows)
        whole = count // (PLACES * parts) * (PLACES * parts)
        for group in range(0, whole, 8):
            place = panel + record * number_of(group // parts, room)
            transpose(source + 4 * group, SCALES_STEP, place, pair_step, single_step)
        for group in range(whole, count):
            place = panel + record * number_of(slot(group // parts, count // parts), room) + 4 * rows * (group % parts)
            for i in range(rows):
                store(place + 4 * i, load(float32, source + i * SCALES_STEP + 4 * group))

    return put_scales


def unpack_word(words: Words, shape: Tile) -> Any:
    """The word unpack(w, row_bytes, valid, n, notes, panel): rows of weights into a panel.

    Where there are fewer than R valid rows, the last one stands for those that lack.
    """
    rows, record, zero, group = shape.rows, shape.panel_record, shape.zero, shape.group
    if words.nibbles is not None and target().depth == 4:
        return unpack_blocks_word(words.nibbles, rows, record, zero - words.zero)
    write_down, put_scales = write_down_word(words, zero), scales_word(shape)
    put_codes = codes_word(rows)
    scales_at, superblock_bytes = rows * CODES_STEP, words.superblock_bytes
    mins_at = scales_at + rows * SCALES_STEP

    @inline
    def unpack(w: int, row_bytes: int, valid: int, n: int, notes: int, panel: int) -> None:
        room = superblocks_of(n)
        for first in range(0, n, STRETCH):
            end, place = min(first + STRETCH, n), panel + first // 256 * record
            for i in range(rows):
                row, scales = w + min(i, valid - 1) * row_bytes, notes + scales_at + i * SCALES_STEP
                write_down(row, first, end, notes + i * CODES_STEP, scales, scales + mins_at - scales_at)
                ahead = w + (i + rows) * row_bytes + first // 256 * superblock_bytes
                for line in range(ahead, ahead + (end - first) // 32 * superblock_bytes // 8, 64):
                    prefetch(line)
            blocks = (end - first) // 32
            for number in range(blocks):
                put_codes(notes + 32 * number, CODES_STEP, place + record * number_of(slot(number, blocks), room))
            groups = (end - first) // group
            put_scales(notes + scales_at, groups, place + 32 * rows, room)
            if not zero:
                put_scales(notes + mins_at, groups, place + 32 * rows + 4 * rows * (32 // group), room)

    return unpack


# --- multiplying --------------------------------------------------------------------------------------------------


def place_word(shape: Tile, part: int) -> Any:
    """The word put_place(panel, x, records, out, count): the sums of the records of a place, over one of their groups.

    A tile of few tokens takes a narrower path through the same records.
    """
    tokens = shape.tokens
    third = tokens // 3 if tokens % 3 == 0 else tokens // 2
    narrow, medium, whole = (tile_word(replace(shape, tokens=min(k * third, tokens)), part) for k in (1, 2, 3))

    @inline
    def put_place(panel: int, x: int, records: int, out: int, count: int) -> None:
        if count <= third:
            narrow(panel, x, records, out)
        elif count <= 2 * third:
            medium(panel, x, records, out)
        else:
            whole(panel, x, records, out)

    return put_place


def sums_word(shape: Tile) -> Any:
    """The word sums(panel, x, records, out, count): a tile's sums of every place of a group in a superblock."""
    first, second = place_word(shape, 0), place_word(shape, shape.parts - 1)
    record, x_record = shape.panel_record, record_bytes(shape.width, shape.passes)
    out_bytes = 4 * shape.rows * shape.width

    @inline
    def put_one(panel: int, x: int, records: int, out: int, count: int) -> None:
        first(panel, x, records, out, count)

    @inline
    def put_two(panel: int, x: int, records: int, out: int, count: int) -> None:
        first(panel, x, records, out, count)
        second(panel, x, records, out + out_bytes, count)

    put_groups, step = {1: put_one, 2: put_two}[shape.parts], shape.parts * out_bytes

    @inline
    def sums(panel: int, x: int, records: int, out: int, count: int) -> None:
        room = (records + PLACES - 1) // PLACES
        ahead = records
        while ahead < records + PLACES:  # a loop that plainly counts to 8 would be unrolled
            put_groups(panel, x, ahead // PLACES, out, count)
            panel, x, out, ahead = panel + room * record, x + room * x_record, out + step, ahead + 1

    return sums


def deliver_word(shape: Tile) -> Any:
    """The word deliver(out, y, y_stride, add, count, valid): add up the sums of a tile, and put the results where they
    belong or add them there, as far as there are tokens and rows."""
    rows, kind = shape.rows, Vector(types.float32, shape.rows)
    total_at = total_of_places(rows, 8 * shape.parts, 4 * rows * shape.width)

    @inline
    def deliver(out: int, y: int, y_stride: int, add: int, count: int, valid: int) -> None:
        for token in range(count):
            values, place = total_at(out + 4 * rows * token), y + token * y_stride
            if valid == rows:
                store(place, values + load(kind, place) if add else values)
            else:
                for i in range(valid):
                    value = extract(values, i)
                    store(place + 4 * i, value + load(float32, place + 4 * i) if add else value)

    return deliver


@inline
def even_block(count: int, most: int, step: int) -> Any:
    """The rows of a block, of panels of `step`: so many blocks as there must be of `most` rows, and all alike, because
    all activations are fetched from far away for a small one, too."""
    blocks = max(1, (count + most - 1) // most)
    return step * max(1, (count + step * blocks - 1) // (step * blocks))


def matmul(room: str, passes: int) -> Body:
    """The kernel y[token][row] = base[token][row] + w[row] . x[token] for tiled tokens; `base` may be 0."""
    words = words_of(room)
    shape = shape_of(words, passes)
    rows, tokens_at_once, record = shape.rows, shape.tokens, shape.panel_record
    unpack, sums, deliver = unpack_word(words, shape), sums_word(shape), deliver_word(shape)
    out_bytes = 4 * rows * tokens_at_once * 8 * shape.parts
    notes_bytes = rows * (CODES_STEP + 2 * SCALES_STEP)
    x_record = record_bytes(tokens_at_once, passes)

    def body(tokens, x, w, row_bytes, n_in, n_out, base, base_stride, y, y_stride, stop, part, parts, scratch):
        first, end = share(n_out, rows, part, parts)
        count, records = load(int64, tokens), n_in // 32
        notes, panels = scratch + out_bytes, scratch + out_bytes + notes_bytes
        room = superblocks_of(n_in)
        panel_bytes, x_bytes = PLACES * room * record, PLACES * room * x_record
        least = AT_LEAST if count > FEW_TILES * tokens_at_once else 1
        block = even_block(end - first, rows * max(least, CACHE_BYTES // panel_bytes), rows)
        put_base(base, base_stride, y, y_stride, count, first, end)
        for start in range(first, end, block):
            if load(int64, stop):
                return
            until = min(start + block, end)
            for row in range(start, until, rows):
                panel = panels + (row - start) // rows * panel_bytes
                unpack(w + row * row_bytes, row_bytes, min(rows, end - row), n_in, notes, panel)
            for token in range(0, count, tokens_at_once):
                here, x_at = min(tokens_at_once, count - token), x + token // tokens_at_once * x_bytes
                for row in range(start, until, rows):
                    sums(panels + (row - start) // rows * panel_bytes, x_at, records, scratch, here)
                    place = y + token * y_stride + 4 * row
                    deliver(scratch, place, y_stride, base, here, min(rows, end - row))

    return body
