"""Roofline kernels: each saturates one resource of the machine and measures the limit for all kernels.

Each stores a result that depends on all its work, so the compiler cannot remove any of it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import int64, types

from localinfer.kernels.layout import LOAD_BYTES, OPERAND_RING, products_shape, round_bytes
from quant.jit.cpu import target
from quant.jit.emit import I64, constant, emit_load
from quant.jit.emit_numeric import emit_accumulation_loop, emit_reduce
from quant.jit.simd import BF16X32, DotBlock, emit_bf16_dot2, emit_dot_block, emit_fma
from quant.jit.sme import SIDE, SUMS_BYTES, OuterSums, emit_outer_sums
from quant.jit.threads import ticks
from quant.jit.vectors import (
    Vector,
    f32x16,
    i32x16,
    intrinsic,
    load,
    lowering,
    prefetch_l2,
    reduce_sum,
    splat,
    store,
)

Body = Callable[..., None]

ACCUMULATORS = 4  # independent sums, which hide the latency of additions
READ_BYTES = ACCUMULATORS * LOAD_BYTES  # a step of reading memory
CODE_BITS = 4  # the fewest bits of any format; no CPU multiplies wider codes faster


def read_bandwidth() -> Body:
    """Make the kernel that reads memory once, as matvec kernels do: result[chunk] = a sum of the chunk.

    A chunk is read in `streams` contiguous ranges side by side. The bytes at the distance `prefetch` are prefetched,
    unless it is 0 (`quant.matmul.row_access`).
    """

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        steps = args.nbytes // (READ_BYTES * args.streams)  # of each stream
        first, end = steps * chunk_index // n_chunks, steps * (chunk_index + 1) // n_chunks
        zero = splat(i32x16, 0)
        a, b, c, d = zero, zero, zero, zero
        begin = args.memory + READ_BYTES * args.streams * first
        for step in range(end - first):
            for stream in range(args.streams):
                at = begin + READ_BYTES * ((end - first) * stream + step)
                if args.prefetch:
                    for line in range(ACCUMULATORS):
                        prefetch_l2(at + args.prefetch + LOAD_BYTES * line)
                a = a + load(i32x16, at)
                b = b + load(i32x16, at + LOAD_BYTES)
                c = c + load(i32x16, at + 2 * LOAD_BYTES)
                d = d + load(i32x16, at + 3 * LOAD_BYTES)
        store(args.result + 8 * chunk_index, int64(reduce_sum(a + b + c + d)))

    return body


Round = Callable[[ir.IRBuilder, list[ir.Value], ir.Value], list[ir.Value]]


def round_of_dots(b: ir.IRBuilder, sums: list[ir.Value], address: ir.Value) -> list[ir.Value]:
    """Emit the products of bytes in a register tile of the matrix kernels: one vector of row sums per token."""
    rows, tokens, columns = products_shape("dot")
    block = DotBlock(rows, tokens, tokens, columns // target().depth, CODE_BITS, peak=127)
    return emit_dot_block(b, sums, address, b.add(address, I64(columns * rows)), block)


def round_of_floats(kind: str) -> Round:
    """Return the emitter of products of floats ("fma") or of pairs of bfloat16 ("pair"): a vector of sums per row and
    token."""
    rows, tokens, _ = products_shape(kind)
    vector, add = (BF16X32, emit_bf16_dot2) if kind == "pair" else (f32x16.llvm, emit_fma)

    def one_round(b: ir.IRBuilder, sums: list[ir.Value], address: ir.Value) -> list[ir.Value]:
        loaded = [emit_load(b, vector, b.add(address, I64(LOAD_BYTES * n))) for n in range(rows + tokens)]
        pairs = [(x, y) for x in loaded[:rows] for y in loaded[rows:]]
        return [add(b, x, y, s) for s, (x, y) in zip(sums, pairs, strict=True)]

    return one_round


def make_outer_products() -> Any:
    """Make products(operands, rounds) with outer products. It returns a sum of the last rounds.

    The operands are those of OPERAND_RING rounds, and the number of rounds is a multiple of it. Memory for the sums
    follows the operands.
    """
    columns = products_shape("dot")[2]
    strides = columns * SIDE, columns * SIDE, SUMS_BYTES
    x_at, sums_at = (number * OPERAND_RING * columns * SIDE for number in (1, 2))

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        operands, rounds = args
        x, out = b.add(operands, I64(x_at)), b.add(operands, I64(sums_at))

        def step(i: ir.Value, last: list[ir.Value]) -> list[ir.Value]:
            emit_outer_sums(b, operands, x, x, I64(OPERAND_RING), out, OuterSums(columns // 4, strides, 0))
            return [emit_load(b, I64, out)]

        return emit_accumulation_loop(b, b.sdiv(rounds, I64(OPERAND_RING)), [I64(0)], step)[0]

    @intrinsic
    def products(typingctx: Any, operands: Any, rounds: Any) -> Any:
        return lowering(types.int64, [types.int64, types.int64], emit)

    return products


def make_products(kind: str) -> Any:
    """Make products(operands, rounds): return the total of many rounds of products of bytes ("dot") or floats."""
    if kind == "dot" and target().has_outer_products:
        return make_outer_products()
    rows, tokens, _ = products_shape(kind)
    one_round = round_of_dots if kind == "dot" else round_of_floats(kind)
    zeros = [constant(Vector(types.int32, rows).llvm, 0)] * tokens if kind == "dot" else []
    zeros = zeros or [constant(f32x16.llvm, 0)] * (rows * tokens)

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        operands, rounds = args
        add = b.add if kind == "dot" else b.fadd

        def step(i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            address = b.mul(b.and_(i, I64(OPERAND_RING - 1)), I64(round_bytes(kind)))
            return one_round(b, sums, b.add(operands, address))

        whole = emit_reduce(b, functools.reduce(add, emit_accumulation_loop(b, rounds, zeros, step)), add)
        return b.sext(whole, I64) if kind == "dot" else b.fptosi(whole, I64)

    @intrinsic
    def products(typingctx: Any, operands: Any, rounds: Any) -> Any:
        return lowering(types.int64, [types.int64, types.int64], emit)

    return products


def multiply(kind: str) -> Body:
    """Make the kernel that multiplies operands in the L1 cache: result[chunk] = the total of its products."""
    products, size = make_products(kind), OPERAND_RING * round_bytes(kind)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        store(args.result + 8 * chunk_index, products(args.operands + size * chunk_index, args.rounds))

    return body


def clock() -> Body:
    """Make the kernel that stores the clock's ticks."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        store(args.result, ticks())

    return body
