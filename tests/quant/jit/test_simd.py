"""Compares instruction-set specific operations with numpy, exactly, including the largest operands."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from emitted import Emit, compile_emitted
from guard_pages import guarded_memory
from llvmlite import ir

from quant.jit.cpu import target
from quant.jit.emit import I8, I32, I64, constant, emit_load
from quant.jit.simd import (
    DotBlock,
    emit_dot4,
    emit_dot_block,
    emit_gather_pieces,
    emit_lookup256,
    emit_sdot,
    emit_shift_insert,
    emit_spread_bits,
)
from quant.jit.sme import SIDE, SUMS_BYTES, OuterSums, emit_outer_sums

BITS = range(1, 9)
Numbers = np.ndarray[Any, np.dtype[Any]]


def compiled(emit: Emit) -> Callable[..., None]:
    """Return a function of three arrays, compiled from LLVM IR that takes their addresses."""
    call = compile_emitted(emit)
    return lambda *arrays: call(*(array.ctypes.data for array in arrays))


def codes_and_bytes(bits: int, peak: int, rows: int, tokens: int, columns: int) -> list[tuple[Numbers, Numbers]]:
    """Return random operands, and the operands with the largest sums."""
    rng, top = np.random.default_rng(bits), 2**bits - 1
    random = rng.integers(0, top + 1, (rows, columns)), rng.integers(-peak, peak + 1, (tokens, columns))
    largest = np.full((rows, columns), top), np.full((tokens, columns), peak)
    return [random, largest, (largest[0], -largest[1])]


def interleave_steps(numbers: Numbers, depth: int, kind: type) -> Numbers:
    """Convert [row][column] to the layout of a dot block: [step][row][depth]."""
    rows, columns = numbers.shape
    return np.ascontiguousarray(numbers.reshape(rows, columns // depth, depth).swapaxes(0, 1).astype(kind))


@pytest.mark.skipif(not target().has_byte_permute, reason="this instruction set has no such tables")
def test_lookup256() -> None:
    rng = np.random.default_rng(0)
    table, indices = rng.integers(0, 256, 256, np.uint8), rng.permutation(256).astype(np.uint8)
    kind, out = ir.VectorType(I8, 64), np.zeros(256, np.uint8)

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        actual = emit_lookup256(b, table.tolist(), emit_load(b, kind, args[0]))
        return b.store(actual, b.inttoptr(args[1], kind.as_pointer()), align=1)

    look_up = compiled(emit)
    for first in range(0, 256, 64):
        look_up(indices[first:], out[first:], table)
    assert (out == table[indices]).all()


@pytest.mark.parametrize(("count", "size"), [(8, 1), (8, 2), (8, 4), (4, 16)])
@pytest.mark.parametrize("distance", [17, 18, 20, 24, 34])
def test_gather_pieces(count: int, size: int, distance: int) -> None:
    """The last piece ends at a guard page."""
    extent = distance * (count - 1) + size

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        actual = emit_gather_pieces(b, args[0], range(0, extent, distance), size, extent)
        return b.store(actual, b.inttoptr(args[1], actual.type.as_pointer()), align=1)

    memory = guarded_memory(extent)
    memory[:] = np.random.default_rng(distance).integers(0, 256, extent, np.uint8)
    out = np.zeros(count * size, np.uint8)
    compiled(emit)(memory, out, out)
    assert (
        out.reshape(count, size) == [memory[address : address + size] for address in range(0, extent, distance)]
    ).all()


@pytest.mark.parametrize("lanes", [8, 16])
def test_dot4(lanes: int) -> None:
    """One function tests all numbers of bits, because compilation dominates the test's time."""
    sums, x = ir.VectorType(I32, lanes), ir.VectorType(I8, 4 * lanes)

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        out, codes_at, x_at = args
        for i, bits in enumerate(BITS):
            address, operand = b.add(out, I64(4 * lanes * i)), I64(4 * lanes * i)
            operands = emit_load(b, x, b.add(codes_at, operand)), emit_load(b, x, b.add(x_at, operand))
            total = emit_dot4(b, emit_load(b, sums, address), *operands, bits)
            b.store(total, b.inttoptr(address, sums.as_pointer()), align=1)
        return out

    run = compiled(emit)
    for cases in zip(*(codes_and_bytes(bits, 127, 1, 1, 4 * lanes) for bits in BITS), strict=True):
        c, a = (np.concatenate(each) for each in zip(*cases, strict=True))
        out = np.tile(np.arange(lanes, dtype=np.int32), (len(BITS), 1))
        run(out, c.astype(np.uint8), a.astype(np.int8))
        assert (out == np.arange(lanes) + (c * a).reshape(len(BITS), lanes, 4).sum(axis=2)).all()


@pytest.mark.skipif(target().has_outer_products, reason="this instruction set has outer products instead")
@pytest.mark.parametrize(("peak", "columns"), [(127, 32), (64, 32), (127, 16)])
def test_dot_block(peak: int, columns: int) -> None:
    here = target()
    rows, width, depth = here.rows, here.tokens, here.depth
    tokens = width // 3 if width % 3 == 0 else width
    together = here.tokens_per_vector
    kind, vectors = ir.VectorType(I32, together * rows), tokens // together

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        out, codes_at, x_at = args
        for i, bits in enumerate(BITS):
            block = DotBlock(rows, tokens, width, columns // depth, bits, peak)
            operands = b.add(codes_at, I64(rows * columns * i)), b.add(x_at, I64(width * columns * i))
            sums = emit_dot_block(b, [constant(kind, 7 * vector) for vector in range(vectors)], *operands, block)
            for vector, total in enumerate(sums):
                address = b.add(out, I64(4 * rows * (tokens * i + together * vector)))
                b.store(total, b.inttoptr(address, kind.as_pointer()), align=1)
        return out

    run = compiled(emit)
    for cases in zip(*(codes_and_bytes(bits, peak, rows, width, columns) for bits in BITS), strict=True):
        out = np.zeros((len(BITS), tokens, rows), np.int32)
        codes = np.stack([interleave_steps(c, depth, np.uint8) for c, _ in cases])
        run(out, codes, np.stack([interleave_steps(a, depth, np.int8) for _, a in cases]))
        for actual, bits, (c, a) in zip(out, BITS, cases, strict=True):
            products = a[:tokens] @ (c.astype(np.int8) if here.has_signed_panels else c).astype(np.int64).T
            sums = actual.reshape(vectors, rows, together).swapaxes(1, 2).reshape(tokens, rows)
            assert (sums == products + 7 * (np.arange(tokens) // together)[:, None]).all(), bits


@pytest.mark.skipif(not target().has_outer_products, reason="this instruction set has no outer products")
@pytest.mark.parametrize(("columns", "start"), [(32, None), (16, 1 << 30)])
def test_outer_sums(columns: int, start: int | None) -> None:
    """Three records follow each other at distances larger than their sizes. The sums leave the bytes between alone."""
    records, steps, gap = 3, columns // 4, 64
    strides = SIDE * columns + gap, SIDE * columns + 4 * SIDE + gap, SUMS_BYTES + gap
    rng = np.random.default_rng(columns)
    codes, x = rng.integers(0, 256, (records, SIDE, columns)), rng.integers(-128, 128, (records, SIDE, columns))
    codes[1], x[1] = 255, -128
    starts = rng.integers(-(1 << 30), 1 << 30, (records, SIDE), np.int32)
    code_bytes, x_bytes = np.zeros((records, strides[0]), np.uint8), np.zeros((records, strides[1]), np.uint8)
    for record in range(records):
        code_bytes[record, : SIDE * columns] = interleave_steps(codes[record], 4, np.uint8).ravel()
        x_bytes[record, : SIDE * columns] = interleave_steps(x[record], 4, np.int8).view(np.uint8).ravel()
        x_bytes[record, SIDE * columns :][: 4 * SIDE] = starts[record].view(np.uint8)

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        starts_at = b.add(args[1], I64(SIDE * columns))
        emit_outer_sums(b, args[0], args[1], starts_at, I64(records), args[2], OuterSums(steps, strides, start))
        return args[2]

    out = np.full((records, strides[2]), 7, np.uint8)
    compiled(emit)(code_bytes, x_bytes, out)
    tiles = out[:, :SUMS_BYTES].copy().view(np.int32).reshape(records, 2, 2, SIDE // 2, SIDE // 2)
    sums = tiles.swapaxes(2, 3).reshape(records, SIDE, SIDE)
    expected = (starts if start is None else np.full_like(starts, start))[:, :, None] + x @ codes.swapaxes(1, 2)
    assert (sums == expected).all()
    assert (out[:, SUMS_BYTES:] == 7).all()


@pytest.mark.parametrize("count", [8, 16, 64])
def test_spread_bits(count: int) -> None:
    rng, targets = np.random.default_rng(count), range(8)
    bits, out = rng.integers(0, 256, count // 8, np.uint8), np.zeros((len(targets), count), np.uint8)

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        for bit in targets:
            spread = emit_spread_bits(b, emit_load(b, ir.IntType(count), args[0]), bit)
            b.store(spread, b.inttoptr(b.add(args[1], I64(count * bit)), spread.type.as_pointer()), align=1)
        return args[0]

    compiled(emit)(bits, out, out)
    set_bits = np.unpackbits(bits, bitorder="little")
    assert (out == set_bits << np.arange(8, dtype=np.uint8)[:, None]).all()


@pytest.mark.skipif(not target().has_shift_insert, reason="this instruction set cannot shift and insert")
@pytest.mark.parametrize(("name", "expected"), [("sli", 0xB3), ("sri", 0xAE)])
def test_shift_insert(name: str, expected: int) -> None:
    kind, out = ir.VectorType(I8, 32), np.zeros(32, np.uint8)

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        into, source = emit_load(b, kind, args[0]), emit_load(b, kind, args[1])
        actual = emit_shift_insert(b, name, into, source, 4)
        return b.store(actual, b.inttoptr(args[2], kind.as_pointer()), align=1)

    compiled(emit)(np.full(32, 0xA3, np.uint8), np.full(32, 0xEB, np.uint8), out)
    assert (out == expected).all()


@pytest.mark.skipif(not target().has_signed_dot, reason="this instruction set multiplies unsigned bytes")
def test_sdot() -> None:
    codes, x = (np.random.default_rng(seed).integers(-128, 128, 16).astype(np.int8) for seed in range(2))
    sums = np.arange(4, dtype=np.int32)

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        kind, pointer = ir.VectorType(I32, 4), b.inttoptr(args[0], ir.VectorType(I32, 4).as_pointer())
        operands = (emit_load(b, ir.VectorType(I8, 16), at) for at in args[1:])
        return b.store(emit_sdot(b, emit_load(b, kind, args[0]), *operands), pointer, align=1)

    compiled(emit)(sums, codes, x)
    assert (sums == np.arange(4) + (codes.astype(int) * x).reshape(4, 4).sum(axis=1)).all()
