"""Kernels that do nothing but keep a part of the machine busy: what they reach is what any kernel could reach.

Each leaves a result that depends on all it did, so that no compiler can leave anything out.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import int64, types

from localinfer.ops.layout import OPERAND_RING, WIDE, products_shape, round_bytes
from quant.jit.cpu import target
from quant.jit.emit import I64, constant, emit_load
from quant.jit.simd import BFLOATS, Block, emit_block, emit_dot2, emit_fma
from quant.jit.threads import ticks
from quant.jit.vectors import (
    Vector,
    emit_fold,
    emit_sum,
    f32x16,
    i32x16,
    inline,
    intrinsic,
    load,
    prefetch,
    prefetch_first,
    splat,
    store,
    total,
    word,
)
from quant.products.rows import FAR, NEAR, nothing

Body = Callable[..., None]

STREAMS = 4  # sums side by side, so that no addition waits for the one before
NARROW = 4  # bits of codes: the fewest that formats have, and no CPU multiplies others faster


def stream(asks: int) -> Body:
    """The kernel that reads memory once from one end to the other: result[part] = a sum of its share.

    With `asks` it asks ahead, as products with rows of weights do where that is worth it (`quant.products.rows`).
    """

    @inline
    def ask(at: int) -> None:
        prefetch(at + FAR)
        for line in range(STREAMS):
            prefetch_first(at + NEAR + WIDE * line)

    fetch = ask if asks else nothing

    def body(memory, nbytes, result, part, parts, scratch):
        lines = nbytes // (STREAMS * WIDE)
        first, end = lines * part // parts, lines * (part + 1) // parts
        zero = splat(i32x16, 0)
        a, b, c, d = zero, zero, zero, zero
        for at in range(memory + STREAMS * WIDE * first, memory + STREAMS * WIDE * end, STREAMS * WIDE):
            fetch(at)
            a = a + load(i32x16, at)
            b = b + load(i32x16, at + WIDE)
            c = c + load(i32x16, at + 2 * WIDE)
            d = d + load(i32x16, at + 3 * WIDE)
        store(result + 8 * part, int64(total(a + b + c + d)))

    return body


Round = Callable[[ir.IRBuilder, list[ir.Value], ir.Value], list[ir.Value]]


def round_of_dots(b: ir.IRBuilder, sums: list[ir.Value], place: ir.Value) -> list[ir.Value]:
    """The products of bytes in a tile of the matrix kernels: a sum of its rows for each token."""
    rows, tokens, columns = products_shape("dot")
    block = Block(rows, tokens, tokens, columns // target().depth, NARROW, peak=127)
    return emit_block(b, sums, place, b.add(place, I64(columns * rows)), block)


def round_of_floats(kind: str) -> Round:
    """Products of floats ("fma") or of pairs of bfloat16 ("pair"): sixteen sums for each row and token."""
    rows, tokens, _ = products_shape(kind)
    vector, add = (BFLOATS, emit_dot2) if kind == "pair" else (f32x16.llvm, emit_fma)

    def one_round(b: ir.IRBuilder, sums: list[ir.Value], place: ir.Value) -> list[ir.Value]:
        loaded = [emit_load(b, vector, b.add(place, I64(WIDE * n))) for n in range(rows + tokens)]
        pairs = [(x, y) for x in loaded[:rows] for y in loaded[rows:]]
        return [add(b, x, y, s) for s, (x, y) in zip(sums, pairs, strict=True)]

    return one_round


def products_word(kind: str) -> Any:
    """The word products(operands, rounds): the total of rounds of products of bytes ("dot") or floats."""
    rows, tokens, _ = products_shape(kind)
    one_round = round_of_dots if kind == "dot" else round_of_floats(kind)
    zeros = [constant(Vector(types.int32, rows).llvm, 0)] * tokens if kind == "dot" else []
    zeros = zeros or [constant(f32x16.llvm, 0)] * (rows * tokens)

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        operands, rounds = args
        add = b.add if kind == "dot" else b.fadd

        def step(i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            place = b.mul(b.and_(i, I64(OPERAND_RING - 1)), I64(round_bytes(kind)))
            return one_round(b, sums, b.add(operands, place))

        whole = emit_fold(b, functools.reduce(add, emit_sum(b, rounds, zeros, step)), add)
        return b.sext(whole, I64) if kind == "dot" else b.fptosi(whole, I64)

    @intrinsic
    def products(typingctx: Any, operands: Any, rounds: Any) -> Any:
        return word(types.int64, [types.int64, types.int64], emit)

    return products


def multiply(kind: str) -> Body:
    """The kernel that multiplies out of the nearest cache: result[part] = the total of its products."""
    products, size = products_word(kind), OPERAND_RING * round_bytes(kind)

    def body(operands, rounds, result, part, parts, scratch):
        store(result + 8 * part, products(operands + size * part, rounds))

    return body


def clock() -> Body:
    """The kernel that looks at the clock."""

    def body(result, part, parts, scratch):
        store(result, ticks())

    return body
