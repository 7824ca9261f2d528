"""F32, F16 and BF16: weights that are numbers already. Words for one of them and for sixteen, and the kernels that read
and write rows of them. Their products are `quant.products.float_products`."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import float32, int32, int64, uint16

from quant.jit.emit import constant, emit_load
from quant.jit.simd import emit_widen_half
from quant.jit.threads import share
from quant.jit.vectors import (
    bitcast,
    f16x16,
    f32x16,
    half,
    inline,
    load,
    store,
    store_half,
    u16x16,
    u32x16,
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


def to_bf16() -> Body:
    """The kernel y = x in bfloat16, for products that take activations so: uint16 [token][n]."""

    def body(tokens, x, n, y, part, parts, scratch):
        first, end = share(load(int64, tokens), 1, part, parts)
        for i in range(n * first, n * end):
            put_bf16(y + 2 * i, load(float32, x + 4 * i))

    return body
