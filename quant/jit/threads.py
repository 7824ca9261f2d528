"""Inlined functions for multithreaded kernels: work division, atomics, spin waiting, the clock, and indirect calls."""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from quant.jit.emit import I32, I64, call_intrinsic
from quant.jit.simd import emit_cycle_counter, emit_pause
from quant.jit.vectors import inline, intrinsic, lowering


@inline
def chunk_range(count: int, unit: int, chunk_index: int, n_chunks: int) -> Any:
    """Return the first and the end row of a chunk. Chunks are contiguous and consist of whole units of `unit` rows."""
    units = (count + unit - 1) // unit
    first, end = units * chunk_index // n_chunks * unit, units * (chunk_index + 1) // n_chunks * unit
    return first, min(end, count)


@intrinsic
def call_address(typingctx: Any, function: Any, op: Any, chunk_index: Any, n_chunks: Any, scratch: Any) -> Any:
    """Call a kernel through its address: `void kernel(int64 op, int64 chunk_index, int64 n_chunks, int64 scratch)`."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        kind = ir.FunctionType(ir.VoidType(), [I64] * 4)
        return b.call(b.inttoptr(args[0], kind.as_pointer()), list(args[1:]))

    return lowering(types.void, [types.int64] * 5, emit)


@intrinsic
def atomic_add(typingctx: Any, address: Any, value: Any) -> Any:
    """Add to an int64 in memory and return its previous value, with acquire-release ordering."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return b.atomic_rmw("add", b.inttoptr(args[0], I64.as_pointer()), args[1], "acq_rel")

    return lowering(types.int64, [types.int64, types.int64], emit)


@intrinsic
def atomic_swap(typingctx: Any, address: Any, expected: Any, value: Any) -> Any:
    """Compare and swap: write an int64 if memory holds `expected`. Return the previous value, with acquire-release
    ordering.
    """

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        pointer = b.inttoptr(args[0], I64.as_pointer())
        return b.extract_value(b.cmpxchg(pointer, args[1], args[2], "acq_rel", "acquire"), 0)

    return lowering(types.int64, [types.int64, types.int64, types.int64], emit)


@intrinsic
def atomic_load(typingctx: Any, address: Any) -> Any:
    """Load an int64 that another thread may write, with acquire ordering."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return b.load_atomic(b.inttoptr(args[0], I64.as_pointer()), "acquire", 8)

    return lowering(types.int64, [types.int64], emit)


@intrinsic
def atomic_store(typingctx: Any, address: Any, value: Any) -> Any:
    """Store an int64 that other threads read, with release ordering."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return b.store_atomic(args[1], b.inttoptr(args[0], I64.as_pointer()), "release", 8)

    return lowering(types.void, [types.int64, types.int64], emit)


@intrinsic
def ticks(typingctx: Any) -> Any:
    """Return the clock that all cores share, in ticks of constant length, or 0 if there is none."""
    return lowering(types.int64, [], lambda b, _: emit_cycle_counter(b))


@intrinsic
def pause(typingctx: Any) -> Any:
    """Execute the spin-wait hint."""
    return lowering(types.void, [], lambda b, _: emit_pause(b))


@intrinsic
def yield_thread(typingctx: Any) -> Any:
    """Yield the core to another thread."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        name = "SwitchToThread" if "windows" in str(b.module.triple) else "sched_yield"
        return call_intrinsic(b, name, I32, [])

    return lowering(types.void, [], emit)
