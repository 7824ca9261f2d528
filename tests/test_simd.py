"""Products of bytes against numpy, on the instruction set of this process: exact, at the largest numbers too."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from numba import njit, types

from quant.cpu import target
from quant.emit import I64, constant, emit_load
from quant.simd import Block, block_takes_away, emit_block, emit_dot4
from quant.vectors import Vector, intrinsic, word

BITS = range(1, 9)
Numbers = np.ndarray[Any, np.dtype[Any]]


def compiled(emit: Callable[[ir.IRBuilder, Sequence[ir.Value]], ir.Value]) -> Callable[..., None]:
    """A function of three arrays, from the LLVM IR that takes their addresses."""

    @intrinsic
    def run(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
        return word(types.void, [types.int64] * 3, emit)

    @njit
    def call(a: int, b: int, c: int) -> None:
        run(a, b, c)

    return lambda *arrays: call(*(array.ctypes.data for array in arrays))


def codes_and_bytes(bits: int, peak: int, rows: int, tokens: int, columns: int) -> list[tuple[Numbers, Numbers]]:
    """Random operands, and those with the largest sums."""
    rng, top = np.random.default_rng(bits), 2**bits - 1
    random = rng.integers(0, top + 1, (rows, columns)), rng.integers(-peak, peak + 1, (tokens, columns))
    largest = np.full((rows, columns), top), np.full((tokens, columns), peak)
    return [random, largest, (largest[0], -largest[1])]


def side_by_side(numbers: Numbers, depth: int, kind: type) -> Numbers:
    """[row][column] as a block has it: [step][row][depth]."""
    rows, columns = numbers.shape
    return np.ascontiguousarray(numbers.reshape(rows, columns // depth, depth).swapaxes(0, 1).astype(kind))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("lanes", [8, 16])
def test_the_dot_product_of_four(bits: int, lanes: int) -> None:
    sums, codes, x = (
        Vector(kind, n).llvm for kind, n in ((types.int32, lanes), (types.uint8, 4 * lanes), (types.int8, 4 * lanes))
    )

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        there = emit_load(b, sums, args[0])
        total = emit_dot4(b, there, emit_load(b, codes, args[1]), emit_load(b, x, args[2]), bits)
        return b.store(total, b.inttoptr(args[0], sums.as_pointer()), align=1)

    run = compiled(emit)
    for c, a in codes_and_bytes(bits, 127, 1, 1, 4 * lanes):
        out = np.arange(lanes, dtype=np.int32)
        run(out, c.astype(np.uint8), a.astype(np.int8))
        assert (out == np.arange(lanes) + (c * a).reshape(lanes, 4).sum(axis=1)).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("peak", "columns"), [(127, 32), (64, 32), (127, 16)])
def test_a_block_of_products(bits: int, peak: int, columns: int) -> None:
    here = target()
    tokens, width, depth = here.tokens // 3 if here.tokens % 3 == 0 else here.tokens, here.tokens, here.depth
    block = Block(here.rows, tokens, width, columns // depth, bits, peak)
    kind = Vector(types.int32, here.rows).llvm

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        sums = emit_block(b, [constant(kind, 7 * token) for token in range(tokens)], args[1], args[2], block)
        for token, total in enumerate(sums):
            b.store(total, b.inttoptr(b.add(args[0], I64(4 * here.rows * token)), kind.as_pointer()), align=1)
        return args[0]

    run = compiled(emit)
    for codes, x in codes_and_bytes(bits, peak, here.rows, width, columns):
        out = np.zeros((tokens, here.rows), np.int32)
        run(out, side_by_side(codes, depth, np.uint8), side_by_side(x, depth, np.int8))
        products = x[:tokens] @ (codes - block_takes_away(bits)).T
        assert (out == products + 7 * np.arange(tokens)[:, None]).all()
