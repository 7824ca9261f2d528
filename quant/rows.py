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

from numba import float32, int32, int64

from quant.cpu import target
from quant.simd import (
    bitcast,
    convert,
    dot4,
    extract,
    f32x8,
    f32x16,
    fma,
    i8x32,
    i8x64,
    i32x8,
    i32x16,
    inline,
    lanes,
    load,
    neighbour_sums,
    splat,
    store,
    total,
    transpose16,
)
from quant.tile import panel_record_bytes, tile_word
from quant.words import Words

Body = Callable[..., None]


def words_of(room: str) -> Words:
    """The words of a format, from its room: "q4_1"."""
    words: Words = import_module(f"quant.{room}").WORDS
    return words


@inline
def share(count: int, unit: int, thread: int, threads: int) -> Any:
    """The first and the end of one thread's rows: neighbours, in whole units."""
    units = (count + unit - 1) // unit
    first, end = units * thread // threads * unit, units * (thread + 1) // threads * unit
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

    def body(tokens, ids, w, row_bytes, n, y, factor, thread, threads):
        first, end = share(load(int64, tokens), 1, thread, threads)
        for token in range(first, end):
            row = int64(load(int32, ids + 4 * token))
            decode(w + row * row_bytes, n, y + 4 * n * token, float32(factor))

    return body


# --- a few tokens -------------------------------------------------------------------------------------------------

# A row's products are exact integers up to here: what is left of it is, for every group of columns, a sum times the
# activations' scale (`sums`), and the weights' scale and min. These are laid down for sixteen rows, one row after the
# other as memory likes it, and then added up across the rows: in the order of the tile, so that a token's result is
# the same to the last bit whether it was computed alone or in a batch.
LINES = 16


def lay_down_weights(words: Words) -> Any:
    """The word weights(row, n, scales_out, mins_out): the scales and mins of a row, in a line each."""
    scales, mins, bytes_each = words.scales, words.mins, 1024 // words.group
    scale1, least1 = words.scale, words.least
    superblock_bytes, block_bytes, has_blocks = words.superblock_bytes, words.block_bytes, words.codes32 is not None

    if has_blocks:

        @inline
        def rest(row: int, n: int, scales_out: int, mins_out: int) -> None:
            for block in range(n // 256 * 8, n // 32):
                store(scales_out + 4 * block, scale1(row + block * block_bytes))
                store(mins_out + 4 * block, least1(row + block * block_bytes))

    else:

        @inline
        def rest(row: int, n: int, scales_out: int, mins_out: int) -> None:
            pass

    @inline
    def weights(row: int, n: int, scales_out: int, mins_out: int) -> None:
        for block in range(n // 256):
            at = row + block * superblock_bytes
            scale, least = scales(at), mins(at)
            store(scales_out + bytes_each * block, scale)
            store(mins_out + bytes_each * block, least)
        rest(row, n, scales_out, mins_out)

    return weights


def lay_down_sums(words: Words) -> Any:
    """The word sums(row, x, n, out): a row times a flat token, a number for every group of columns, in a line."""
    dot, codes64, codes32, group = dot4(words.bits), words.codes64, words.codes32, words.group
    superblock_bytes, block_bytes, bytes_each = words.superblock_bytes, words.block_bytes, 1024 // words.group
    kind, twice = words.kind, lanes([lane // 2 for lane in range(16)])

    @inline
    def quarter(block: int, j: int, high: int, low: int) -> Any:
        """The dot products of 64 columns, four columns a lane."""
        codes = codes64(block, j)
        sums = dot(splat(i32x16, int32(0)), codes, load(i8x64, high + 64 * j))
        return dot(sums << splat(i32x16, int32(7)), codes, load(i8x64, low + 64 * j))

    @inline
    def sixteens(block: int, high: int, low: int) -> Any:
        """The sums of every 16 columns of a superblock."""
        first = neighbour_sums(quarter(block, 0, high, low), quarter(block, 1, high, low))
        second = neighbour_sums(quarter(block, 2, high, low), quarter(block, 3, high, low))
        return neighbour_sums(first, second)

    if group == 32:
        half = lanes(range(8))

        @inline
        def superblock(block: int, high: int, low: int, x_scale: Any) -> Any:
            sums = sixteens(block, high, low)
            return convert(kind, half(neighbour_sums(sums, sums))) * x_scale

    else:

        @inline
        def superblock(block: int, high: int, low: int, x_scale: Any) -> Any:
            return convert(kind, sixteens(block, high, low)) * twice(x_scale)

    if codes32 is None:

        @inline
        def rest(row: int, x: int, n: int, out: int) -> None:
            pass

    else:

        @inline
        def rest(row: int, x: int, n: int, out: int) -> None:
            for block in range(n // 256 * 8, n // 32):
                codes = codes32(row + block * block_bytes)
                sums = dot(splat(i32x8, int32(0)), codes, load(i8x32, x + 32 * block))
                sums = dot(sums << splat(i32x8, int32(7)), codes, load(i8x32, x + n + 32 * block))
                store(out + 4 * block, float32(total(sums)) * load(float32, x + 2 * n + 4 * block))

    @inline
    def sums_of_row(row: int, x: int, n: int, out: int) -> None:
        for block in range(n // 256):
            x_scale = load(f32x8, x + 2 * n + 32 * block)
            at, high, low = row + block * superblock_bytes, x + 256 * block, x + n + 256 * block
            store(out + bytes_each * block, superblock(at, high, low, x_scale))
        rest(row, x, n, out)

    return sums_of_row


def add_up_word(words: Words) -> Any:
    """The word add_up(sums, scales, mins, line, x_sums, groups, turned): the products of sixteen rows, f32x16."""

    @inline
    def add_up(sums: int, scales: int, mins: int, line: int, x_sums: int, groups: int, turned: int) -> Any:
        acc = splat(f32x16, float32(0.0))
        for first in range(0, groups, LINES):
            transpose16(sums + 4 * first, line, turned)
            transpose16(scales + 4 * first, line, turned + 1024)
            transpose16(mins + 4 * first, line, turned + 2048)
            for i in range(min(LINES, groups - first)):
                at = turned + 64 * i
                acc = fma(load(f32x16, at), load(f32x16, at + 1024), acc)
                x_sum = splat(f32x16, load(float32, x_sums + 4 * (first + i)))
                acc = fma(load(f32x16, at + 2048), x_sum, acc)
        return acc

    return add_up


def matvec(room: str) -> Body:
    """The kernel y[token][row] (+)= w[row] . x[token] for flat tokens."""
    words = words_of(room)
    weights, sums_of_row, add_up = lay_down_weights(words), lay_down_sums(words), add_up_word(words)
    group, sums_at = words.group, 1 if words.group == 32 else 2

    def body(tokens, x, w, row_bytes, n_in, n_out, y, y_stride, add, scratch, scratch_bytes, stop, thread, threads):
        first, end = share(n_out, LINES, thread, threads)
        count, x_stride, groups = load(int64, tokens), 2 * n_in + n_in // 2, n_in // group
        line = (groups + LINES - 1) // LINES * LINES * 4
        turned = scratch + thread * scratch_bytes
        scales = turned + 3072
        mins = scales + LINES * line
        sums = mins + LINES * line
        for row in range(first, end, LINES):
            valid = min(LINES, end - row)
            for i in range(valid):
                at = w + (row + i) * row_bytes
                weights(at, n_in, scales + line * i, mins + line * i)
                for token in range(count):
                    sums_of_row(at, x + token * x_stride, n_in, sums + line * (LINES * token + i))
            for token in range(count):
                x_sums = x + token * x_stride + 2 * n_in + sums_at * (n_in // 8)
                result = add_up(sums + line * LINES * token, scales, mins, line, x_sums, groups, turned)
                place = y + token * y_stride + 4 * row
                for i in range(valid):
                    value = extract(result, i)
                    store(place + 4 * i, value + load(float32, place + 4 * i) if add else value)

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


@inline
def deliver(tile: int, rows: int, y: int, y_stride: int, count: int, valid_rows: int, add: int) -> None:
    """Copy a computed tile [T][rows] to its place in y, as far as it has tokens and rows."""
    for token in range(count):
        for i in range(valid_rows):
            place, value = y + token * y_stride + 4 * i, load(float32, tile + 4 * (rows * token + i))
            if add:
                value += load(float32, place)
            store(place, value)


def matmul(room: str) -> Body:
    """The kernel y[token][row] (+)= w[row] . x[token] for tiled tokens."""
    words = words_of(room)
    rows, tile_tokens = target().rows, target().tokens
    unpack = unpack_row(words, rows)
    tile = tile_word(rows, tile_tokens, words.group, words.bits)
    record = panel_record_bytes(rows, words.group)

    def body(tokens, x, w, row_bytes, n_in, n_out, y, y_stride, add, scratch, scratch_bytes, stop, thread, threads):
        first, end = share(n_out, rows, thread, threads)
        count, groups = load(int64, tokens), n_in // 32
        out = scratch + thread * scratch_bytes
        panel = out + 4 * rows * tile_tokens
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
                tile(panel, x + token * (2 * n_in + n_in // 2), groups, out)
                here = y + token * y_stride + 4 * row
                deliver(out, rows, here, y_stride, min(tile_tokens, count - token), valid, add)

    return body
