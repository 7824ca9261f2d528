"""Words for threads that meet in compiled code: atomic numbers, waiting, the clock, and calls through addresses."""

import sys
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from quant.jit.emit import I32, I64, call_llvm
from quant.jit.simd import emit_pause, emit_ticks
from quant.jit.vectors import inline, intrinsic, word


@inline
def share(count: int, unit: int, part: int, parts: int) -> Any:
    """The first and the end of one part of the rows: neighbours, in whole units."""
    units = (count + unit - 1) // unit
    first, end = units * part // parts * unit, units * (part + 1) // parts * unit
    return first, min(end, count)


@intrinsic
def call(typingctx: Any, function: Any, op: Any, part: Any, parts: Any, scratch: Any) -> Any:
    """Call a kernel through its address: `void kernel(int64 op, int64 part, int64 parts, int64 scratch)`."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        kind = ir.FunctionType(ir.VoidType(), [I64] * 4)
        return b.call(b.inttoptr(args[0], kind.as_pointer()), list(args[1:]))

    return word(types.void, [types.int64] * 5, emit)


@intrinsic
def atomic_add(typingctx: Any, address: Any, value: Any) -> Any:
    """Add to an int64 in memory; returns what was there. Acquires and releases."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return b.atomic_rmw("add", b.inttoptr(args[0], I64.as_pointer()), args[1], "acq_rel")

    return word(types.int64, [types.int64, types.int64], emit)


@intrinsic
def atomic_swap(typingctx: Any, address: Any, expected: Any, value: Any) -> Any:
    """Write an int64 if memory holds the expected one; returns what was there. Acquires and releases."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        place = b.inttoptr(args[0], I64.as_pointer())
        return b.extract_value(b.cmpxchg(place, args[1], args[2], "acq_rel", "acquire"), 0)

    return word(types.int64, [types.int64, types.int64, types.int64], emit)


@intrinsic
def atomic_load(typingctx: Any, address: Any) -> Any:
    """An int64 that another thread may write; acquires."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return b.load_atomic(b.inttoptr(args[0], I64.as_pointer()), "acquire", 8)

    return word(types.int64, [types.int64], emit)


@intrinsic
def atomic_store(typingctx: Any, address: Any, value: Any) -> Any:
    """Write an int64 that other threads read; releases."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return b.store_atomic(args[1], b.inttoptr(args[0], I64.as_pointer()), "release", 8)

    return word(types.void, [types.int64, types.int64], emit)


@intrinsic
def ticks(typingctx: Any) -> Any:
    """The clock that all cores share, in ticks of a constant length; 0 where there is none."""
    return word(types.int64, [], lambda b, _: emit_ticks(b))


@intrinsic
def pause(typingctx: Any) -> Any:
    """Tell the core that this is a spin loop."""
    return word(types.void, [], lambda b, _: emit_pause(b))


@intrinsic
def give_way(typingctx: Any) -> Any:
    """Let another thread have the core, where the system has a call for it."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        if sys.platform == "win32":
            return ir.Constant(I32, 0)
        return call_llvm(b, "sched_yield", I32, [])

    return word(types.void, [], emit)
