"""Matrix multiplication for many tokens: rows are unpacked once into panels, which the register tile takes in turn.

A panel is R rows in the tile's own order (`quant.products.unpack`). Some panels are made at a time, as many as a core's
cache holds and of long rows a few more, so that the activations are read from far away less often; of few tokens these
stay near, and so does a panel that is used at once. The rows behind it are asked for meanwhile, bit by bit: memory has
nothing else to do then.
"""

from dataclasses import replace
from typing import Any

from numba import float32, int64, types

from quant.codes.words import Body, Words, words_of
from quant.jit.cpu import target
from quant.jit.threads import share
from quant.jit.vectors import Vector, extract, inline, load, prefetch, store
from quant.products.activations import superblocks_of
from quant.products.base import put_base
from quant.products.layout import (
    AT_LEAST,
    CACHE_BYTES,
    CODES_STEP,
    FEW_TILES,
    PLACES,
    SCALES_STEP,
    ZERO,
    record_bytes,
)
from quant.products.tile import Tile, tile_word, total_of_places
from quant.products.unpack import EARLY, unpack_word


def shape_of(words: Words, passes: int) -> Tile:
    """The whole tile of a format."""
    here = target()
    moved = words.zero > 0 and here.takes_any_byte
    bits, zero = (8, ZERO) if moved else (words.bits, words.zero)
    return Tile(here.rows, here.tokens, here.tokens, passes, words.group, bits, zero)


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
    """The word sums(panel, x, records, out, count, ahead, ahead_bytes): a tile's sums of every place of a group in a
    superblock; with each place so many bytes more of what lies ahead are asked for."""
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
    def sums(panel: int, x: int, records: int, out: int, count: int, ahead: int, ahead_bytes: int) -> None:
        room = (records + PLACES - 1) // PLACES
        number = records
        while number < records + PLACES:  # a loop that plainly counts to 8 would be unrolled
            for line in range(ahead, ahead + ahead_bytes, 64):
                prefetch(line)
            put_groups(panel, x, number // PLACES, out, count)
            panel, x, out = panel + room * record, x + room * x_record, out + step
            number, ahead = number + 1, ahead + ahead_bytes

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
        tiles = (count + tokens_at_once - 1) // tokens_at_once
        last = min(tiles, FEW_TILES)  # tiles that ask for what comes then
        most = max(AT_LEAST, CACHE_BYTES // panel_bytes) if tiles > FEW_TILES else 1
        block, early = even_block(end - first, rows * most, rows), rows * row_bytes // EARLY
        ahead_bytes = (rows * row_bytes - early) // (PLACES * last)
        put_base(base, base_stride, y, y_stride, count, first, end)
        for start in range(first, end, block):
            if load(int64, stop):
                return
            until = min(start + block, end)
            for row in range(start, until, rows):
                panel = panels + (row - start) // rows * panel_bytes
                unpack(w + row * row_bytes, row_bytes, min(rows, end - row), n_in, notes, panel)
            for tile in range(tiles):
                token, x_at, asks = tile * tokens_at_once, x + tile * x_bytes, tile - (tiles - last)
                here, step = min(tokens_at_once, count - token), ahead_bytes if asks >= 0 else 0
                for row in range(start, until, rows):
                    panel, ahead = panels + (row - start) // rows * panel_bytes, w + (row + block) * row_bytes + early
                    sums(panel, x_at, records, scratch, here, ahead + asks * PLACES * step, step)
                    place = y + token * y_stride + 4 * row
                    deliver(scratch, place, y_stride, base, here, min(rows, end - row))

    return body
