"""What every block-quantized format does with its rows, given the format's own words.

A format describes 256 columns (a superblock: one block of a k-quant, or eight blocks of 32) by three words, and, if its
blocks are shorter, a single block by three more. A weight is scale * code + min, with a code below 2**bits and one
scale and min for every `group` columns. From these words this file makes the kernels of a format:

    get_rows   rows of weights as floats: token embeddings, and everything that wants to look at weights
    matvec     a few tokens: rows straight from the file, bound by memory
    matmul     many tokens: rows unpacked once into panels for the register tile

Threads divide the rows of the output, never a sum, so a result does not depend on their number.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from numba import float32, int32, int64, types

from quant.cpu import target
from quant.tile import panel_record_bytes, tile_word, total_of_places
from quant.vectors import (
    Vector,
    bitcast,
    convert,
    dot4,
    extract,
    f32x8,
    fma,
    i8x32,
    i8x64,
    i32x8,
    i32x16,
    inline,
    insert,
    lanes,
    load,
    neighbour_sums,
    splat,
    store,
    total,
)
from quant.words import Words

Body = Callable[..., None]


def words_of(room: str) -> Words:
    """The words of a format, from its room: "q4_1"."""
    words: Words = import_module(f"quant.{room}").WORDS
    return words


@inline
def share(count: int, unit: int, part: int, parts: int) -> Any:
    """The first and the end of one part of the rows: neighbours, in whole units."""
    units = (count + unit - 1) // unit
    first, end = units * part // parts * unit, units * (part + 1) // parts * unit
    return first, min(end, count)


# --- rows as floats -----------------------------------------------------------------------------------------------


def value_word(words: Words) -> Any:
    """The word value(code, scale, least): the weight, rounded just as ggml rounds it."""
    zero = float32(words.zero)

    @inline
    def from_zero(code: int, scale: float, least: float) -> Any:
        return scale * (float32(code) - zero)

    @inline
    def from_min(code: int, scale: float, least: float) -> Any:
        return fma(float32(code), scale, least)

    return from_zero if words.zero else from_min


def decode_row(words: Words) -> Any:
    """The word decode(row, n, y, factor): n weights as floats, exactly as ggml defines them, times a factor."""
    codes64, scales, mins, group = words.codes64, words.scales, words.mins, words.group
    codes32, scale1, least1 = words.codes32, words.scale, words.least
    superblock_bytes, block_bytes = words.superblock_bytes, words.block_bytes
    value = value_word(words)

    @inline
    def superblock(block: int, y: int, factor: float) -> None:
        scale, least = scales(block), mins(block)
        for j in range(4):
            codes = codes64(block, j)
            for lane in range(64):
                part = (64 * j + lane) // group
                weight = value(extract(codes, lane), extract(scale, part), extract(least, part))
                store(y + 4 * (64 * j + lane), weight * factor)

    if codes32 is None:

        @inline
        def rest(row: int, first: int, n: int, y: int, factor: float) -> None:
            pass

    else:

        @inline
        def rest(row: int, first: int, n: int, y: int, factor: float) -> None:
            for block in range(first // 32, n // 32):
                at = row + block * block_bytes
                codes, scale, least = codes32(at), scale1(at), least1(at)
                for lane in range(32):
                    store(y + 128 * block + 4 * lane, value(extract(codes, lane), scale, least) * factor)

    @inline
    def decode(row: int, n: int, y: int, factor: float) -> None:
        for block in range(n // 256):
            superblock(row + block * superblock_bytes, y + 1024 * block, factor)
        rest(row, n // 256 * 256, n, y, factor)

    return decode


def get_rows(room: str) -> Body:
    """The kernel y[token] = factor * w[ids[token]]."""
    decode = decode_row(words_of(room))

    def body(tokens, ids, w, row_bytes, n, y, factor, part, parts, scratch):
        first, end = share(load(int64, tokens), 1, part, parts)
        for token in range(first, end):
            row = int64(load(int32, ids + 4 * token))
            decode(w + row * row_bytes, n, y + 4 * n * token, float32(factor))

    return body


# --- a few tokens -------------------------------------------------------------------------------------------------


def group_sums(words: Words) -> Any:
    """The word sums(superblock, high, low): the exact dot product of every group of columns, as floats in its lane."""
    dot, codes64, group, kind = dot4(words.bits), words.codes64, words.group, words.kind
    lower = lanes(range(8))

    @inline
    def quarter(block: int, j: int, high: int, low: int) -> Any:
        """64 columns, four columns a lane."""
        codes = codes64(block, j)
        sums = dot(splat(i32x16, int32(0)), codes, load(i8x64, high + 64 * j))
        return dot(sums << splat(i32x16, int32(7)), codes, load(i8x64, low + 64 * j))

    @inline
    def of_sixteen(block: int, high: int, low: int) -> Any:
        first = neighbour_sums(quarter(block, 0, high, low), quarter(block, 1, high, low))
        second = neighbour_sums(quarter(block, 2, high, low), quarter(block, 3, high, low))
        return neighbour_sums(first, second)

    @inline
    def sixteens(block: int, high: int, low: int) -> Any:
        return convert(kind, of_sixteen(block, high, low))

    @inline
    def thirty_twos(block: int, high: int, low: int) -> Any:
        sums = of_sixteen(block, high, low)
        return convert(kind, lower(neighbour_sums(sums, sums)))

    return sixteens if group == 16 else thirty_twos


def rest_of_row(words: Words) -> Any:
    """The word rest(row, x, n, x_scales, x_sums, acc): the blocks behind the last superblock, each into its lane."""
    dot, codes64, codes32 = dot4(words.bits), words.codes64, words.codes32
    scale1, least1, superblock_bytes, block_bytes = words.scale, words.least, words.superblock_bytes, words.block_bytes

    @inline
    def two_lanes(lane: int, a: float, b: float) -> Any:
        return insert(insert(splat(f32x8, float32(0.0)), lane, a), lane + 1, b)

    @inline
    def pair(j: int, first: int, high: int, low: int, x_scales: int, x_sums: int, acc: Any) -> Any:
        """Blocks 2j and 2j + 1, in lanes of the same numbers."""
        codes = codes64(first, j)
        sums = dot(splat(i32x16, int32(0)), codes, load(i8x64, high + 64 * j))
        sums = dot(sums << splat(i32x16, int32(7)), codes, load(i8x64, low + 64 * j))
        sums = neighbour_sums(sums, sums)
        sums = neighbour_sums(sums, sums)
        sums = neighbour_sums(sums, sums)
        at, scales_at, sums_at = first + 2 * j * block_bytes, x_scales + 8 * j, x_sums + 8 * j
        scaled_a = float32(extract(sums, 0)) * load(float32, scales_at)
        scaled_b = float32(extract(sums, 1)) * load(float32, scales_at + 4)
        scale = two_lanes(2 * j, scale1(at), scale1(at + block_bytes))
        least = two_lanes(2 * j, least1(at), least1(at + block_bytes))
        acc = fma(two_lanes(2 * j, scaled_a, scaled_b), scale, acc)
        return fma(least, two_lanes(2 * j, load(float32, sums_at), load(float32, sums_at + 4)), acc)

    @inline
    def single(lane: int, at: int, high: int, low: int, x_scale: int, x_sum: int, acc: Any) -> Any:
        codes = codes32(at)
        sums = dot(splat(i32x8, int32(0)), codes, load(i8x32, high))
        sums = dot(sums << splat(i32x8, int32(7)), codes, load(i8x32, low))
        value = fma(float32(total(sums)) * load(float32, x_scale), scale1(at), extract(acc, lane))
        return insert(acc, lane, fma(least1(at), load(float32, x_sum), value))

    @inline
    def rest(row: int, x: int, n: int, x_scales: int, x_sums: int, acc: Any) -> Any:
        whole = n // 256
        blocks, first = n // 32 - 8 * whole, row + whole * superblock_bytes
        high, low, scales_at, sums_at = x + 256 * whole, x + n + 256 * whole, x_scales + 32 * whole, x_sums + 32 * whole
        if blocks >= 2:
            acc = pair(0, first, high, low, scales_at, sums_at, acc)
        if blocks >= 4:
            acc = pair(1, first, high, low, scales_at, sums_at, acc)
        if blocks >= 6:
            acc = pair(2, first, high, low, scales_at, sums_at, acc)
        if blocks & 1:
            lane = blocks - 1
            at, up, down = first + lane * block_bytes, high + 32 * lane, low + 32 * lane
            acc = single(lane, at, up, down, scales_at + 4 * lane, sums_at + 4 * lane, acc)
        return acc

    @inline
    def no_rest(row: int, x: int, n: int, x_scales: int, x_sums: int, acc: Any) -> Any:
        return acc

    return no_rest if codes32 is None else rest


def dot_row(words: Words) -> Any:
    """The word dot(row, x, n): a row of weights times a flat token, float32.

    Each place of a group in a superblock has a sum of its own, in a lane here and in a pass of the tile there, and they
    are added up in the same order: so a token's result is the same to the last bit alone and in a batch.
    """
    sums, scales, mins, kind, rest = group_sums(words), words.scales, words.mins, words.kind, rest_of_row(words)
    superblock_bytes, groups = words.superblock_bytes, 256 // words.group
    sums_at = 1 if words.group == 32 else 2
    for_group = lanes([lane * 8 // groups for lane in range(groups)])

    @inline
    def dot(row: int, x: int, n: int) -> Any:
        x_scales = x + 2 * n
        x_sums = x_scales + sums_at * (n // 8)
        acc = splat(kind, float32(0.0))
        for block in range(n // 256):
            at = row + block * superblock_bytes
            scaled = sums(at, x + 256 * block, x + n + 256 * block) * for_group(load(f32x8, x_scales + 32 * block))
            scale, least = scales(at), mins(at)
            acc = fma(scaled, scale, acc)
            acc = fma(least, load(kind, x_sums + 4 * groups * block), acc)
        return total(rest(row, x, n, x_scales, x_sums, acc))

    return dot


def matvec(room: str) -> Body:
    """The kernel y[token][row] (+)= w[row] . x[token] for flat tokens."""
    dot = dot_row(words_of(room))

    def body(tokens, x, w, row_bytes, n_in, n_out, y, y_stride, add, stop, part, parts, scratch):
        first, end = share(n_out, 8, part, parts)
        count, x_stride = load(int64, tokens), 2 * n_in + n_in // 2
        for row in range(first, end):
            for token in range(count):
                place = y + token * y_stride + 4 * row
                result = dot(w + row * row_bytes, x + token * x_stride, n_in)
                if add:
                    result += load(float32, place)
                store(place, result)

    return body


# --- many tokens --------------------------------------------------------------------------------------------------


def unpack_row(words: Words, rows: int) -> Any:
    """The word unpack(row, n, panel, i): a row of weights into place i of a panel of `rows`."""
    codes64, scales, mins, group = words.codes64, words.scales, words.mins, words.group
    codes32, scale1, least1 = words.codes32, words.scale, words.least
    superblock_bytes, block_bytes = words.superblock_bytes, words.block_bytes
    record, parts = panel_record_bytes(rows, words.group), 32 // words.group

    @inline
    def superblock(block: int, panel: int, i: int) -> None:
        for j in range(4):
            fours = bitcast(i32x16, codes64(block, j))
            for lane in range(16):
                place = panel + record * (2 * j + lane // 8) + 4 * rows * (lane % 8) + 4 * i
                store(place, extract(fours, lane))
        scale, least = scales(block), mins(block)
        for part in range(256 // group):
            place = panel + record * (part // parts) + 32 * rows + 4 * rows * (part % parts) + 4 * i
            store(place, extract(scale, part))
            store(place + 4 * rows * parts, extract(least, part))

    if codes32 is None:

        @inline
        def rest(row: int, first: int, n: int, panel: int, i: int) -> None:
            pass

    else:

        @inline
        def rest(row: int, first: int, n: int, panel: int, i: int) -> None:
            for block in range(first // 32, n // 32):
                at, place = row + block * block_bytes, panel + record * block + 4 * i
                fours = bitcast(i32x8, codes32(at))
                for lane in range(8):
                    store(place + 4 * rows * lane, extract(fours, lane))
                store(place + 32 * rows, scale1(at))
                store(place + 36 * rows, least1(at))

    @inline
    def unpack(row: int, n: int, panel: int, i: int) -> None:
        for block in range(n // 256):
            superblock(row + block * superblock_bytes, panel + 8 * record * block, i)
        rest(row, n // 256 * 256, n, panel, i)

    return unpack


def whole_tile(words: Words) -> Any:
    """The word tile(panel, x, records, out): the sums of every place of a group in a superblock, tile after tile."""
    rows, tokens = target().rows, target().tokens
    add = tile_word(rows, tokens, words.group, words.bits)
    size, zero = 4 * rows * tokens * (256 // words.group), Vector(types.float32, rows)

    @inline
    def tile(panel: int, x: int, records: int, out: int) -> None:
        for place in range(out, out + size, 4 * rows):
            store(place, splat(zero, float32(0.0)))
        add(panel, x, records, out)

    return tile


def deliver_word(words: Words) -> Any:
    """The word deliver(out, y, y_stride, count, valid_rows, add): add up the sums of a tile, and put the results where
    they belong, as far as there are tokens and rows."""
    rows, places, kind = target().rows, 256 // words.group, Vector(types.float32, target().rows)
    total_at = total_of_places(rows, places, 4 * rows * target().tokens)

    @inline
    def deliver(out: int, y: int, y_stride: int, count: int, valid_rows: int, add: int) -> None:
        for token in range(count):
            values, place = total_at(out + 4 * rows * token), y + token * y_stride
            if valid_rows == rows:
                store(place, values + load(kind, place) if add else values)
            else:
                for i in range(valid_rows):
                    value, at = extract(values, i), place + 4 * i
                    store(at, value + load(float32, at) if add else value)

    return deliver


def matmul(room: str) -> Body:
    """The kernel y[token][row] (+)= w[row] . x[token] for tiled tokens."""
    words = words_of(room)
    rows, tile_tokens, places = target().rows, target().tokens, 256 // words.group
    unpack, tile, deliver = unpack_row(words, rows), whole_tile(words), deliver_word(words)
    record = panel_record_bytes(rows, words.group)

    def body(tokens, x, w, row_bytes, n_in, n_out, y, y_stride, add, stop, part, parts, scratch):
        first, end = share(n_out, rows, part, parts)
        count, groups = load(int64, tokens), n_in // 32
        panel = scratch + 4 * rows * tile_tokens * places
        for row in range(first, end, rows):
            if load(int64, stop):
                return
            valid = min(rows, end - row)
            for i in range(valid, rows):
                for place in range(panel + 4 * i, panel + groups * record, 4 * rows):
                    store(place, int32(0))
            for i in range(valid):
                unpack(w + (row + i) * row_bytes, n_in, panel, i)
            for token in range(0, count, tile_tokens):
                tile(panel, x + token * (2 * n_in + n_in // 2), groups, scratch)
                here = y + token * y_stride + 4 * row
                deliver(scratch, here, y_stride, min(tile_tokens, count - token), valid, add)

    return body
