"""F32, F16 and BF16: weights that are numbers already. Their products are computed in single precision throughout.

The kernels are those of `quant.rows` and `quant.panels`, with activations that are not quantized: x is float32,
[token][n_in].
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import float32, int32, int64, types, uint16

from quant.cpu import target
from quant.emit import I64, constant, emit_load
from quant.layout import CACHE_BYTES
from quant.simd import emit_fma, emit_widen_half
from quant.threads import share
from quant.vectors import (
    bitcast,
    emit_sum,
    f16x16,
    f32x16,
    fma,
    half,
    inline,
    intrinsic,
    load,
    store,
    store_half,
    total,
    u16x16,
    u32x16,
    word,
)

Body = Callable[..., None]
BYTES = {"f32": 4, "f16": 2, "bf16": 2}


F32 = f32x16.llvm


def sixteen_f32(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Sixteen weights."""
    return emit_load(b, F32, address)


def sixteen_f16(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Sixteen weights, widened."""
    return emit_widen_half(b, emit_load(b, f16x16.llvm, address), F32)


def sixteen_bf16(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Sixteen weights; a bfloat16 is the upper half of a float32."""
    wide = b.zext(emit_load(b, u16x16.llvm, address), u32x16.llvm)
    return b.bitcast(b.shl(wide, constant(u32x16.llvm, 16)), F32)


SIXTEEN = {"f32": sixteen_f32, "f16": sixteen_f16, "bf16": sixteen_bf16}


@inline
def one_f32(address: int) -> Any:
    return load(float32, address)


@inline
def one_f16(address: int) -> Any:
    return half(address)


@inline
def one_bf16(address: int) -> Any:
    return bitcast(float32, int32(load(uint16, address) << 16))


ONE = {"f32": one_f32, "f16": one_f16, "bf16": one_bf16}


def get_rows(room: str) -> Body:
    """The kernel y[token] = factor * w[ids[token]]."""
    one, size = ONE[room], BYTES[room]

    def body(tokens, ids, w, row_bytes, n, y, factor, part, parts, scratch):
        first, end = share(load(int64, tokens), 1, part, parts)
        for token in range(first, end):
            row = w + int64(load(int32, ids + 4 * token)) * row_bytes
            for i in range(n):
                store(y + 4 * (n * token + i), one(row + size * i) * float32(factor))

    return body


@inline
def put_f32(address: int, x: float) -> None:
    store(address, x)


@inline
def put_f16(address: int, x: float) -> None:
    store_half(address, x)


@inline
def put_bf16(address: int, x: float) -> None:
    """Round to the nearest even; a NaN stays one, its fraction cut."""
    bits = bitcast(int32, x)
    rounded = bits + int32(0x7FFF) + ((bits >> int32(16)) & int32(1))
    quiet = bits | int32(0x0040_0000)
    store(address, uint16((rounded if x == x else quiet) >> int32(16)))


PUT = {"f32": put_f32, "f16": put_f16, "bf16": put_bf16}


def encode(room: str, effort: str) -> Body:
    """The kernel y[row] = x[row], every number rounded to the nearest; no effort could do better."""
    put, size = PUT[room], BYTES[room]

    def body(x, importance, n, y, row_bytes, rows, part, parts, scratch):
        first, end = share(rows, 1, part, parts)
        for row in range(first, end):
            for i in range(n):
                put(y + row_bytes * row + size * i, load(float32, x + 4 * (n * row + i)))

    return body


def dot_tile(room: str, rows: int, tokens: int) -> Any:
    """The word dots(row, row_bytes, x, x_stride, n, out): out[rows][tokens] of products of rows with tokens.

    Every product has sixteen sums, a column in sixteen each, whatever the tile, so that it comes out the same to the
    last bit whether a token is alone or in a batch.
    """
    sixteen, size = SIXTEEN[room], BYTES[room]
    pairs = [(i, j) for i in range(rows) for j in range(tokens)]

    def step(b: ir.IRBuilder, weights: list[ir.Value], values: list[ir.Value], acc: list[ir.Value]) -> list[ir.Value]:
        return [emit_fma(b, weights[i], values[j], s) for (i, j), s in zip(pairs, acc, strict=True)]

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        row, row_bytes, x, x_stride, n, out = args
        rows_at = [b.add(row, b.mul(row_bytes, I64(i))) for i in range(rows)]
        tokens_at = [b.add(x, b.mul(x_stride, I64(j))) for j in range(tokens)]

        def sixteen_columns(column: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
            at, x_at = b.mul(column, I64(16 * size)), b.mul(column, I64(64))
            weights = [sixteen(b, b.add(place, at)) for place in rows_at]
            values = [emit_load(b, F32, b.add(place, x_at)) for place in tokens_at]
            return step(b, weights, values, acc)

        zeros = [constant(F32, 0.0)] * len(pairs)
        for at, value in enumerate(emit_sum(b, b.lshr(n, I64(4)), zeros, sixteen_columns)):
            b.store(value, b.inttoptr(b.add(out, I64(64 * at)), F32.as_pointer()), align=4)
        return out

    @intrinsic
    def dots(typingctx: Any, row: Any, row_bytes: Any, x: Any, x_stride: Any, n: Any, out: Any) -> Any:
        return word(types.void, [types.int64] * 6, emit)

    return dots


def finish_word(room: str) -> Any:
    """The word finish(sums, row, x, n): a product from its sixteen sums, and the columns that are left over."""
    one, size = ONE[room], BYTES[room]

    @inline
    def finish(sums: int, row: int, x: int, n: int) -> Any:
        result = total(load(f32x16, sums))
        for i in range(n // 16 * 16, n):
            result = fma(one(row + size * i), load(float32, x + 4 * i), result)
        return result

    return finish


def sixteen_word(room: str) -> Any:
    """The word sixteen(address): sixteen weights as float32."""

    @intrinsic
    def sixteen(typingctx: Any, address: Any) -> Any:
        return word(f32x16, [types.int64], lambda b, args: SIXTEEN[room](b, args[0]))

    return sixteen


def widen_word(room: str) -> Any:
    """The word widen(row, n, place): a row as float32."""
    sixteen, one, size = sixteen_word(room), ONE[room], BYTES[room]

    @inline
    def widen(row: int, n: int, place: int) -> None:
        for i in range(0, n // 16 * 16, 16):
            store(place + 4 * i, sixteen(row + size * i))
        for i in range(n // 16 * 16, n):
            store(place + 4 * i, one(row + size * i))

    return widen


def multiply_word(room: str, rows: int, tokens: int) -> Any:
    """The word multiply(valid, row, row_bytes, x, n, y, y_stride, add, sums): the results of a tile's first rows."""
    dots, finish = dot_tile(room, rows, tokens), finish_word(room)

    @inline
    def multiply(
        valid: int, row: int, row_bytes: int, x: int, n: int, y: int, y_stride: int, add: int, sums: int
    ) -> None:
        dots(row, row_bytes, x, 4 * n, n, sums)
        for i in range(valid):
            for j in range(tokens):
                place = y + j * y_stride + 4 * i
                value = finish(sums + 64 * (tokens * i + j), row + i * row_bytes, x + 4 * n * j, n)
                store(place, value + load(float32, place) if add else value)

    return multiply


def matvec(room: str) -> Body:
    """The kernel y[token][row] (+)= w[row] . x[token] for a few tokens: a row after the other, as memory likes it."""
    multiply = multiply_word(room, 1, 1)

    def body(tokens, x, w, row_bytes, n_in, n_out, y, y_stride, add, stop, part, parts, scratch):
        first, end = share(n_out, 8, part, parts)
        count = load(int64, tokens)
        for row in range(first, end):
            for token in range(count):
                place = y + token * y_stride + 4 * row
                multiply(1, w + row * row_bytes, row_bytes, x + 4 * n_in * token, n_in, place, y_stride, add, scratch)

    return body


def matmul(room: str) -> Body:
    """The kernel y[token][row] (+)= w[row] . x[token] for many tokens.

    Rows are widened once, as many as a core's cache holds, and meet all tokens, a tile at a time.
    """
    rows, width = (4, 5) if target().sums >= 24 else (2, 3)
    widen, whole, narrow = widen_word(room), multiply_word("f32", rows, width), multiply_word("f32", rows, 1)

    def body(tokens, x, w, row_bytes, n_in, n_out, y, y_stride, add, stop, part, parts, scratch):
        first, end = share(n_out, rows, part, parts)
        count, step = load(int64, tokens), 4 * n_in + 64
        panel = scratch + 64 * rows * width
        block = max(1, CACHE_BYTES // (step * rows)) * rows
        for start in range(first, end, block):
            if load(int64, stop):
                return
            until = min(start + block, end)
            for row in range(start, until + (start - until) % rows):
                widen(w + min(row, until - 1) * row_bytes, n_in, panel + (row - start) * step)
            for token in range(0, count, width):
                for row in range(start, until, rows):
                    at, place = panel + (row - start) * step, y + token * y_stride + 4 * row
                    valid, x_at = min(rows, until - row), x + 4 * n_in * token
                    if token + width <= count:
                        whole(valid, at, step, x_at, n_in, place, y_stride, add, scratch)
                    else:
                        for j in range(count - token):
                            here = place + j * y_stride
                            narrow(valid, at, step, x_at + 4 * n_in * j, n_in, here, y_stride, add, scratch)

    return body
