"""The weighted values of a block: those of 64 cells times each row's weights. Layouts are those of
`localinfer.ops.attend`; where keys are values, too, some of their dimensions are turned from panels to cells first.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from localinfer.ops.cells import CELL_TYPES, F32, CellType
from localinfer.ops.layout import BLOCK, PANEL, row_bytes
from localinfer.ops.scores import emit_ahead, widest
from quant.jit.emit import I32, I64, emit_load, emit_splat
from quant.jit.simd import emit_fma
from quant.jit.vectors import (
    convert,
    emit_convert,
    emit_sum,
    f16x16,
    f32x16,
    inline,
    intrinsic,
    load,
    store,
    word,
)


def weigh_word(kind: CellType, rows: int, vectors: int, value_dim: int, value_bytes: int, ahead_bytes: int) -> Any:
    """The word weigh(p, v, sums, ahead, cells): sums[row][..] += p[row][cell] * v[cell][..] of so many cells of a
    block, some vectors wide. A cell's values are so many bytes behind those of the cell before it.
    """

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        p, v, sums, ahead, cells = args
        offsets = [row_bytes(value_dim) * row + 64 * vector for row in range(rows) for vector in range(vectors)]
        start = [emit_load(b, F32, b.add(sums, I64(offset))) for offset in offsets]

        def step(cell: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
            emit_ahead(b, ahead, cell, ahead_bytes)
            p_at, v_at = b.add(p, b.mul(cell, I64(4))), b.add(v, b.mul(cell, I64(value_bytes)))
            values = [kind.read(b, v_at, vector) for vector in range(vectors)]
            for row in range(rows):
                weight = emit_splat(b, F32, emit_load(b, F32.element, b.add(p_at, I64(4 * BLOCK * row))))
                for vector, value in enumerate(values):
                    at = row * vectors + vector
                    acc[at] = emit_fma(b, value, weight, acc[at])
            return acc

        for offset, value in zip(offsets, emit_sum(b, cells, start, step), strict=True):
            b.store(value, b.inttoptr(b.add(sums, I64(offset)), F32.as_pointer()), align=4)
        return sums

    @intrinsic
    def weigh(typingctx: Any, p: Any, v: Any, sums: Any, ahead: Any, cells: Any) -> Any:
        return word(types.void, [types.int64] * 5, emit)

    return weigh


def weigh_block_word(kind: CellType, rows: int, value_dim: int, other_bytes: int) -> Any:
    """The word weigh_block(p, v, sums, scaled_p, ahead, cells): the weighted values of a block's first cells; likewise,
    of keys."""
    scaled, groups, code_bytes = kind.scaled, value_dim // 32, kind.code_bytes
    vectors = 2 if scaled else widest(rows, value_dim // 16)
    passes = value_dim // 16 // vectors
    share = other_bytes // passes
    weigh = weigh_word(kind, rows, vectors, value_dim, groups * code_bytes, share // BLOCK)
    scale_bytes = kind.scale_bytes(value_dim)

    @inline
    def scale_weights(p: int, scales: int, scaled_p: int) -> None:
        for cell in range(0, BLOCK, 16):
            scale = convert(f32x16, load(f16x16, scales + 2 * cell))
            for at in range(4 * cell, 4 * cell + 4 * BLOCK * rows, 4 * BLOCK):
                store(scaled_p + at, load(f32x16, p + at) * scale)

    @inline
    def weigh_block(p: int, v: int, sums: int, scaled_p: int, ahead: int, cells: int) -> None:
        if scaled:
            for group in range(groups):
                scale_weights(p, v + 2 * BLOCK * group, scaled_p)
                weigh(scaled_p, v + scale_bytes + code_bytes * group, sums + 128 * group, ahead + share * group, cells)
        else:
            for n in range(passes):
                weigh(p, v + code_bytes // 2 * vectors * n, sums + 64 * vectors * n, ahead + share * n, cells)

    return weigh_block


def emit_transposed(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Sixteen rows of sixteen become columns: squares of 1, 2, 4 and 8 change places with those across from them."""
    kind = ir.VectorType(I32, 16)
    for size in (1, 2, 4, 8):
        upper = ir.Constant(kind, [lane - size + 16 if lane & size else lane for lane in range(16)])
        lower = ir.Constant(kind, [lane + 16 if lane & size else lane + size for lane in range(16)])
        for i in range(16):
            if not i & size:
                one, other = rows[i], rows[i + size]
                rows[i], rows[i + size] = (b.shuffle_vector(one, other, mask) for mask in (upper, lower))
    return rows


def turn_word(kind: CellType, key_dim: int) -> Any:
    """The word turn(k, out): out[cell][32 dimensions], float32, of a group of dimensions of a block's keys."""
    panel_bytes, scale_bytes = PANEL * kind.head_bytes(key_dim), 2 * PANEL * kind.scaled
    step_apart, apart = kind.dimensions

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        k, out = args
        for panel in range(BLOCK // PANEL):
            here = b.add(k, I64(panel_bytes * panel))
            keys = {}
            for step in range(16):
                line = b.add(here, I64(scale_bytes + PANEL * kind.code_bytes // 16 * step))
                for n in range(2):
                    keys[step_apart * step + apart * n] = kind.read(b, line, n)
            if kind.scaled:
                scale = emit_convert(b, emit_load(b, f16x16.llvm, here), types.float16, types.float32, F32)
                keys = {dimension: b.fmul(key, scale) for dimension, key in keys.items()}
            for first in (0, 16):
                for cell, values in enumerate(emit_transposed(b, [keys[first + i] for i in range(16)])):
                    place = b.add(out, I64(128 * (PANEL * panel + cell) + 4 * first))
                    b.store(values, b.inttoptr(place, F32.as_pointer()), align=4)
        return out

    @intrinsic
    def turn(typingctx: Any, k: Any, out: Any) -> Any:
        return word(types.void, [types.int64] * 2, emit)

    return turn


def weigh_keys_word(kind: CellType, rows: int, key_dim: int, value_dim: int, other_bytes: int) -> Any:
    """The word weigh_block for values that are the last dimensions of keys: 32 of them at a time are turned into cells,
    in the place of weights that are scaled."""
    turn, groups, group_bytes = turn_word(kind, key_dim), value_dim // 32, PANEL * kind.group_bytes
    first = (key_dim - value_dim) // 32
    vectors = widest(rows, 2)
    share = other_bytes // (groups * (2 // vectors))
    weigh = weigh_word(CELL_TYPES["f32"], rows, vectors, value_dim, 128, share // BLOCK)

    @inline
    def weigh_block(p: int, k: int, sums: int, turned: int, ahead: int, cells: int) -> None:
        for group in range(groups):
            turn(k + group_bytes * (first + group), turned)
            for column in range(0, 128, 64 * vectors):
                there = ahead + share * (2 * group + column // 64) // vectors
                weigh(p, turned + column, sums + 128 * group + column, there, cells)

    return weigh_block
