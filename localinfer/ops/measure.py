"""Kernels that do nothing but keep a part of the machine busy: what they reach is what any kernel could reach.

Each leaves a result that depends on all it did, so that no compiler can leave anything out.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import int64, types

from localinfer.ops.layout import OPERAND_RING, WIDE, operand_bytes, product_tile
from quant.emit import I64, constant, emit_load
from quant.simd import emit_dot4, emit_fma
from quant.threads import ticks
from quant.vectors import Vector, emit_sum, i32x16, intrinsic, load, splat, store, total, word

Body = Callable[..., None]

STREAMS = 4  # sums side by side, so that no addition waits for the one before
NARROW = 7  # bits of codes that every CPU multiplies in one go


def stream() -> Body:
    """The kernel that reads memory once from one end to the other: result[part] = a sum of its share."""

    def body(memory, nbytes, result, part, parts, scratch):
        lines = nbytes // (STREAMS * WIDE)
        first, end = lines * part // parts, lines * (part + 1) // parts
        zero = splat(i32x16, 0)
        a, b, c, d = zero, zero, zero, zero
        for at in range(memory + STREAMS * WIDE * first, memory + STREAMS * WIDE * end, STREAMS * WIDE):
            a = a + load(i32x16, at)
            b = b + load(i32x16, at + WIDE)
            c = c + load(i32x16, at + 2 * WIDE)
            d = d + load(i32x16, at + 3 * WIDE)
        store(result + 8 * part, int64(total(a + b + c + d)))

    return body


def products_word(kind: str) -> Any:
    """The word products(operands, rounds): rounds of a register tile of products; the sum of some of its sums.

    `kind` is "dot", four products of bytes for each sum, or "fma", one of floats.
    """
    rows, tokens = product_tile()
    element = types.int32 if kind == "dot" else types.float32
    sums = Vector(element, 16).llvm
    operand = Vector(types.uint8, WIDE).llvm if kind == "dot" else sums

    def multiply(b: ir.IRBuilder, acc: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        return emit_dot4(b, acc, x, y, NARROW) if kind == "dot" else emit_fma(b, x, y, acc)

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        operands, rounds = args

        def step(i: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
            place = b.add(operands, b.mul(b.and_(i, I64(OPERAND_RING - 1)), I64(WIDE * (rows + tokens))))
            loaded = [emit_load(b, operand, b.add(place, I64(WIDE * n))) for n in range(rows + tokens)]
            pairs = [(x, y) for x in loaded[:rows] for y in loaded[rows:]]
            return [multiply(b, s, x, y) for s, (x, y) in zip(acc, pairs, strict=True)]

        results = emit_sum(b, rounds, [constant(sums, 0)] * (rows * tokens), step)
        whole = results[0]
        for each in results[1:]:
            whole = b.add(whole, each) if kind == "dot" else b.fadd(whole, each)
        first = b.extract_element(whole, I64(0))
        return b.sext(first, I64) if kind == "dot" else b.fptosi(first, I64)

    @intrinsic
    def products(typingctx: Any, operands: Any, rounds: Any) -> Any:
        return word(types.int64, [types.int64, types.int64], emit)

    return products


def multiply(kind: str) -> Body:
    """The kernel that multiplies out of the nearest cache: result[part] = what depends on all of its products."""
    products, size = products_word(kind), operand_bytes()

    def body(operands, rounds, result, part, parts, scratch):
        store(result + 8 * part, products(operands + size * part, rounds))

    return body


def clock() -> Body:
    """The kernel that looks at the clock."""

    def body(result, part, parts, scratch):
        store(result, ticks())

    return body
