"""F32, F16 and BF16: weights that are numbers already. Their products are computed in single precision throughout.

The three kernels are those of `quant.rows`, with activations that are not quantized: x is float32, [token][n_in].
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import float32, int32, int64, types, uint16, uint32

from quant.cpu import target
from quant.rows import deliver, share
from quant.simd import (
    I64,
    Vector,
    bitcast,
    constant,
    convert,
    emit_fma,
    emit_load,
    emit_splat,
    f16x16,
    f32x16,
    fma,
    half,
    inline,
    intrinsic,
    load,
    splat,
    store,
    total,
    u16x16,
    u32x16,
    word,
)

Body = Callable[..., None]
BYTES = {"f32": 4, "f16": 2, "bf16": 2}


@inline
def sixteen_f32(address: int) -> Any:
    return load(f32x16, address)


@inline
def sixteen_f16(address: int) -> Any:
    return convert(f32x16, load(f16x16, address))


@inline
def sixteen_bf16(address: int) -> Any:
    """A bfloat16 is the upper half of a float32."""
    return bitcast(f32x16, convert(u32x16, load(u16x16, address)) << splat(u32x16, uint32(16)))


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

    def body(tokens, ids, w, row_bytes, n, y, factor, thread, threads):
        first, end = share(load(int64, tokens), 1, thread, threads)
        for token in range(first, end):
            row = w + int64(load(int32, ids + 4 * token)) * row_bytes
            for i in range(n):
                store(y + 4 * (n * token + i), one(row + size * i) * float32(factor))

    return body


def dot_row(room: str) -> Any:
    """The word dot(row, x, n): four sums of sixteen lanes, then what is left one by one."""
    sixteen, one, size = SIXTEEN[room], ONE[room], BYTES[room]

    @inline
    def dot(row: int, x: int, n: int) -> Any:
        a = b = c = d = splat(f32x16, float32(0.0))
        for i in range(0, n - 63, 64):
            a = fma(sixteen(row + size * i), load(f32x16, x + 4 * i), a)
            b = fma(sixteen(row + size * (i + 16)), load(f32x16, x + 4 * (i + 16)), b)
            c = fma(sixteen(row + size * (i + 32)), load(f32x16, x + 4 * (i + 32)), c)
            d = fma(sixteen(row + size * (i + 48)), load(f32x16, x + 4 * (i + 48)), d)
        result = total((a + b) + (c + d))
        for i in range(n // 64 * 64, n):
            result = fma(one(row + size * i), load(float32, x + 4 * i), result)
        return result

    return dot


def matvec(room: str) -> Body:
    """The kernel y[token][row] (+)= w[row] . x[token]."""
    dot = dot_row(room)

    def body(tokens, x, w, row_bytes, n_in, n_out, y, y_stride, add, scratch, scratch_bytes, stop, thread, threads):
        first, end = share(n_out, 8, thread, threads)
        count = load(int64, tokens)
        for row in range(first, end):
            for token in range(count):
                place = y + token * y_stride + 4 * row
                result = dot(w + row * row_bytes, x + token * 4 * n_in, n_in)
                if add:
                    result += load(float32, place)
                store(place, result)

    return body


def float_tile(rows: int, tokens: int) -> Any:
    """The word tile(panel, x, x_stride, n, out): out[T][rows] = panel[n][rows] . x[T][n]."""
    f32 = Vector(types.float32, rows).llvm

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        panel, x, stride, n, out = args
        before, loop, done = b.block, b.append_basic_block("column"), b.append_basic_block("done")
        places = [b.add(x, b.mul(stride, I64(t))) for t in range(tokens)]
        b.branch(loop)
        b.position_at_end(loop)
        index = b.phi(I64)
        acc = [b.phi(f32) for _ in range(tokens)]
        weights = emit_load(b, f32, b.add(panel, b.mul(index, I64(4 * rows))))
        offset, after = b.mul(index, I64(4)), []
        for place, sums in zip(places, acc, strict=True):
            value = emit_splat(b, f32, emit_load(b, ir.FloatType(), b.add(place, offset)))
            after.append(emit_fma(b, weights, value, sums))
        following = b.add(index, I64(1))
        index.add_incoming(I64(0), before)
        index.add_incoming(following, b.block)
        for sums, value in zip(acc, after, strict=True):
            sums.add_incoming(constant(f32, 0.0), before)
            sums.add_incoming(value, b.block)
        b.cbranch(b.icmp_signed("<", following, n), loop, done)
        b.position_at_end(done)
        for t, value in enumerate(after):
            b.store(value, b.inttoptr(b.add(out, I64(4 * rows * t)), f32.as_pointer()), align=4)
        return out

    @intrinsic
    def tile(typingctx: Any, panel: Any, x: Any, x_stride: Any, n: Any, out: Any) -> Any:
        return word(types.void, [types.int64] * 5, emit)

    return tile


def matmul(room: str) -> Body:
    """The kernel y[token][row] (+)= w[row] . x[token]."""
    one, size = ONE[room], BYTES[room]
    rows, tile_tokens = target().rows, target().tokens
    tile, last_tile = float_tile(rows, tile_tokens), float_tile(rows, 1)

    def body(tokens, x, w, row_bytes, n_in, n_out, y, y_stride, add, scratch, scratch_bytes, stop, thread, threads):
        first, end = share(n_out, rows, thread, threads)
        count = load(int64, tokens)
        out = scratch + thread * scratch_bytes
        panel = out + 4 * rows * tile_tokens
        for row in range(first, end, rows):
            if load(int64, stop):
                return
            valid = min(rows, end - row)
            for i in range(rows):
                source = w + (row + min(i, valid - 1)) * row_bytes
                for column in range(n_in):
                    store(panel + 4 * (rows * column + i), one(source + size * column))
            whole = count // tile_tokens * tile_tokens
            for token in range(0, whole, tile_tokens):
                tile(panel, x + token * 4 * n_in, 4 * n_in, n_in, out)
                deliver(out, rows, y + token * y_stride + 4 * row, y_stride, tile_tokens, valid, add)
            for token in range(whole, count):
                last_tile(panel, x + token * 4 * n_in, 4 * n_in, n_in, out)
                deliver(out, rows, y + token * y_stride + 4 * row, y_stride, 1, valid, add)

    return body
