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
    splat,
    store,
    total,
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


def dot_row(words: Words) -> Any:
    """The word dot(row, x, n): a row of weights times a flat token, float32."""
    dot = dot4(words.bits)
    codes64, scales, mins, kind = words.codes64, words.scales, words.mins, words.kind
    codes32, scale1, least1 = words.codes32, words.scale, words.least
    superblock_bytes, block_bytes = words.superblock_bytes, words.block_bytes
    sums_at, sums_bytes = (1, 32) if words.group == 32 else (2, 64)

    def in_front_of(group: int, j: int) -> Any:
        """The word that puts a superblock's scales in front of columns 64j .. 64j+63, four columns a lane."""
        return lanes([(64 * j + 4 * lane) // group for lane in range(16)])

    w0, w1, w2, w3 = (in_front_of(words.group, j) for j in range(4))
    x0, x1, x2, x3 = (in_front_of(32, j) for j in range(4))

    @inline
    def quarter(block: int, j: int, high: int, low: int) -> Any:
        """The dot products of 64 columns, four columns a lane."""
        codes = codes64(block, j)
        sums = dot(splat(i32x16, int32(0)), codes, load(i8x64, high + 64 * j))
        sums = dot(sums << splat(i32x16, int32(7)), codes, load(i8x64, low + 64 * j))
        return convert(f32x16, sums)

    @inline
    def superblock(block: int, high: int, low: int, x_scale: Any, acc: Any) -> Any:
        w_scale = scales(block)
        acc = fma(quarter(block, 0, high, low), w0(w_scale) * x0(x_scale), acc)
        acc = fma(quarter(block, 1, high, low), w1(w_scale) * x1(x_scale), acc)
        acc = fma(quarter(block, 2, high, low), w2(w_scale) * x2(x_scale), acc)
        return fma(quarter(block, 3, high, low), w3(w_scale) * x3(x_scale), acc)

    if codes32 is None:

        @inline
        def rest(row: int, x: int, n: int, x_scales: int, x_sums: int) -> Any:
            return float32(0.0)

    else:

        @inline
        def rest(row: int, x: int, n: int, x_scales: int, x_sums: int) -> Any:
            result = float32(0.0)
            for block in range(n // 256 * 8, n // 32):
                at = row + block * block_bytes
                codes = codes32(at)
                sums = dot(splat(i32x8, int32(0)), codes, load(i8x32, x + 32 * block))
                sums = dot(sums << splat(i32x8, int32(7)), codes, load(i8x32, x + n + 32 * block))
                x_scale, x_sum = load(float32, x_scales + 4 * block), load(float32, x_sums + 4 * block)
                result += fma(float32(total(sums)), scale1(at) * x_scale, least1(at) * x_sum)
            return result

    @inline
    def dot_of_row(row: int, x: int, n: int) -> Any:
        x_scales = x + 2 * n
        x_sums = x_scales + sums_at * (n // 8)
        acc, offset = splat(f32x16, float32(0.0)), splat(kind, float32(0.0))
        for block in range(n // 256):
            at, x_scale = row + block * superblock_bytes, load(f32x8, x_scales + 32 * block)
            acc = superblock(at, x + 256 * block, x + n + 256 * block, x_scale, acc)
            offset = fma(mins(at), load(kind, x_sums + sums_bytes * block), offset)
        return total(acc) + total(offset) + rest(row, x, n, x_scales, x_sums)

    return dot_of_row


def matvec(room: str) -> Body:
    """The kernel y[token][row] (+)= w[row] . x[token] for flat tokens."""
    dot = dot_row(words_of(room))

    def body(tokens, x, w, row_bytes, n_in, n_out, y, y_stride, add, scratch, scratch_bytes, stop, thread, threads):
        first, end = share(n_out, 8, thread, threads)
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
