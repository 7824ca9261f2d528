"""F32, F16 and BF16 weights: loads and stores, and the kernels that decode and encode rows.

`quant.matmul.float_matmul` has their matrix products.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import float32, int32, int64, uint16

from quant.jit.emit import constant, emit_load
from quant.jit.simd import emit_f16_to_f32
from quant.jit.threads import chunk_range
from quant.jit.vectors import bitcast, f16x16, f32x16, inline, load, load_half, store, store_half, u16x16, u32x16

KernelBody = Callable[..., None]
ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
F32X16 = f32x16.llvm


def emit_load16_f32(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Load sixteen F32 weights."""
    return emit_load(b, F32X16, address)


def emit_load16_f16(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Load sixteen F16 weights as float32."""
    return emit_f16_to_f32(b, emit_load(b, f16x16.llvm, address), F32X16)


def emit_load16_bf16(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Load sixteen BF16 weights as float32. A bfloat16 is the upper half of a float32."""
    wide = b.zext(emit_load(b, u16x16.llvm, address), u32x16.llvm)
    return b.bitcast(b.shl(wide, constant(u32x16.llvm, 16)), F32X16)


EMIT_LOAD16 = {"f32": emit_load16_f32, "f16": emit_load16_f16, "bf16": emit_load16_bf16}


@inline
def load_f32(address: int) -> Any:
    """Load a float32."""
    return load(float32, address)


@inline
def load_f16(address: int) -> Any:
    """Load a half precision number as float32."""
    return load_half(address)


@inline
def load_bf16(address: int) -> Any:
    """Load a bfloat16 as float32."""
    return bitcast(float32, int32(load(uint16, address) << 16))


LOAD = {"f32": load_f32, "f16": load_f16, "bf16": load_bf16}


def get_rows(format_module: str) -> KernelBody:
    """Return the kernel y[row] = factor * w[ids[row]]: float32 [token][per_token][n]."""
    load_one, size = LOAD[format_module], ELEMENT_BYTES[format_module]

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(load(int64, args.tokens) * args.per_token, 1, chunk_index, n_chunks)
        for number in range(first, end):
            row = args.w + int64(load(int32, args.ids + 4 * number)) * args.row_bytes
            for i in range(args.n):
                store(args.y + 4 * (args.n * number + i), load_one(row + size * i) * float32(args.factor))

    return body


@inline
def store_f32(address: int, x: float) -> None:
    """Store a float32."""
    store(address, x)


@inline
def store_f16(address: int, x: float) -> None:
    """Store a number in half precision."""
    store_half(address, x)


@inline
def store_bf16(address: int, x: float) -> None:
    """Store a number as bfloat16, rounded to nearest even. A NaN stays a NaN, with its fraction truncated."""
    bits = bitcast(int32, x)
    rounded = bits + int32(0x7FFF) + ((bits >> int32(16)) & int32(1))
    quiet = bits | int32(0x0040_0000)
    store(address, uint16((rounded if x == x else quiet) >> int32(16)))


STORE = {"f32": store_f32, "f16": store_f16, "bf16": store_bf16}


def encode(format_module: str, effort: str) -> KernelBody:
    """Return the kernel y[row] = x[row], with every number rounded to the nearest. `effort` is ignored."""
    store_one, size = STORE[format_module], ELEMENT_BYTES[format_module]

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(args.rows, 1, chunk_index, n_chunks)
        for row in range(first, end):
            for i in range(args.n):
                store_one(args.y + args.row_bytes * row + size * i, load(float32, args.x + 4 * (args.n * row + i)))

    return body


def to_bf16() -> KernelBody:
    """Return the kernel that converts float32 activations to bfloat16: uint16 [token][n]."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(load(int64, args.tokens), 1, chunk_index, n_chunks)
        for i in range(args.n * first, args.n * end):
            store_bf16(args.y + 2 * i, load(float32, args.x + 4 * i))

    return body
