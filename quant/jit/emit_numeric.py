"""Helpers to emit LLVM IR for numba's numeric types: conversions, reductions, prefetches and accumulation loops."""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types

from quant.jit.emit import I32, I64, call_intrinsic, intrinsic_suffix
from quant.jit.simd import emit_f16_to_f32, emit_f32_to_f16

LLVM_TYPES: dict[Any, Any] = {
    types.boolean: ir.IntType(1),
    types.int8: ir.IntType(8),
    types.uint8: ir.IntType(8),
    types.int16: ir.IntType(16),
    types.uint16: ir.IntType(16),
    types.int32: I32,
    types.uint32: I32,
    types.int64: I64,
    types.uint64: I64,
    types.float16: ir.HalfType(),
    types.float32: ir.FloatType(),
    types.float64: ir.DoubleType(),
}
SIGNED_TYPES = {types.int8, types.int16, types.int32, types.int64}
FLOAT_TYPES = {types.float16, types.float32, types.float64}


def emit_prefetch(b: ir.IRBuilder, address: ir.Value, level: int) -> ir.Value:
    """Prefetch a cache line for reading into the cache of `level`. Any address is allowed."""
    read, keep, data = I32(0), I32(4 - level), I32(1)
    pointer = b.inttoptr(address, ir.IntType(8).as_pointer())
    return call_intrinsic(b, "llvm.prefetch.p0", ir.VoidType(), [pointer, read, keep, data])


def emit_convert(b: ir.IRBuilder, value: ir.Value, source: types.Type, wanted: types.Type, kind: ir.Type) -> ir.Value:
    """Convert between numeric types. Widening is exact, float to int rounds to nearest even, narrowing ints
    truncates.
    """
    if source in FLOAT_TYPES and wanted in FLOAT_TYPES:
        if source is types.float16:
            return emit_f16_to_f32(b, value, kind)
        if wanted is types.float16:
            return emit_f32_to_f16(b, value, kind)
        return b.fpext(value, kind) if wanted is types.float64 else b.fptrunc(value, kind)
    if source in FLOAT_TYPES:
        rounded = call_intrinsic(b, f"llvm.rint.{intrinsic_suffix(value.type)}", value.type, [value])
        return b.fptosi(rounded, kind)
    if wanted in FLOAT_TYPES:
        return b.sitofp(value, kind) if source in SIGNED_TYPES else b.uitofp(value, kind)
    if LLVM_TYPES[source].width == LLVM_TYPES[wanted].width:
        return value
    if LLVM_TYPES[source].width > LLVM_TYPES[wanted].width:
        return b.trunc(value, kind)
    return b.sext(value, kind) if source in SIGNED_TYPES else b.zext(value, kind)


def emit_reduce(b: ir.IRBuilder, v: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """Reduce a vector to a scalar by repeatedly combining its halves. The order of operations is the same on every
    CPU.
    """
    width = v.type.count
    while width > 1:
        width //= 2
        low = ir.Constant(ir.VectorType(I32, width), list(range(width)))
        high = ir.Constant(ir.VectorType(I32, width), list(range(width, 2 * width)))
        v = combine(b.shuffle_vector(v, v, low), b.shuffle_vector(v, v, high))
    return b.extract_element(v, I32(0))


def emit_accumulation_loop(
    b: ir.IRBuilder,
    count: ir.Value,
    start: Sequence[ir.Value],
    step: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """Emit a loop with accumulators in registers: acc = step(i, acc) for i < count. A count of 0 returns `start`."""
    before, loop, done = b.block, b.append_basic_block("sum"), b.append_basic_block("summed")
    b.cbranch(b.icmp_signed(">", count, I64(0)), loop, done)
    b.position_at_end(loop)
    index, acc = b.phi(I64), [b.phi(first.type) for first in start]
    after = step(index, list(acc))
    following = b.add(index, I64(1))
    for phi, first, value in zip([index, *acc], [I64(0), *start], [following, *after], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(value, b.block)
    last = b.block
    b.cbranch(b.icmp_signed("<", following, count), loop, done)
    b.position_at_end(done)
    results = [b.phi(first.type) for first in start]
    for result, first, value in zip(results, start, after, strict=True):
        result.add_incoming(first, before)
        result.add_incoming(value, last)
    return results
