"""A tile of queries looks at cells: scores, the online softmax (Milakov and Gimelshein, 2018), weighted sums of values.

Every key and value is loaded and widened once for all rows of a tile. Cells are read in blocks of 64, in the order in
which they lie, whatever their positions: a cell counts for a row if its position is not after the row's, and not more
than the window before it. What rows share a tile changes no bit of any row.

Layouts: keys [panel][head_dim][16] and values [cell][head_dim], halves; a packed tile of queries [head_dim][rows];
a block's weights [rows][64]; a state: for each row, 64 bytes with its largest score and its denominator, then the
sums [rows][head_dim].
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import float32, int32, int64, types

from localinfer.ops.layout import BLOCK
from quant.cpu import target
from quant.simd import I64, constant, emit_fma
from quant.vectors import (
    any_lane,
    emit_convert,
    emit_load,
    emit_splat,
    emit_sum,
    exp,
    extract,
    f16x16,
    f32x16,
    fma,
    i32x16,
    inline,
    intrinsic,
    largest,
    load,
    maximum,
    select,
    splat,
    store,
    total,
    word,
)

Body = Callable[..., None]

MINUS_INFINITY = float32(float("-inf"))
F32 = f32x16.llvm


def emit_halves(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Sixteen halves of the cache, widened."""
    return emit_convert(b, emit_load(b, f16x16.llvm, address), types.float16, types.float32, F32)


def score_word(rows: int, panels: int) -> Any:
    """The word score(q, k, head_dim, out): out[row][16 * panel + cell] = q . k for some neighbouring panels."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        q, k, head_dim, out = args
        panel_bytes = b.mul(head_dim, I64(32))
        places = [b.add(k, b.mul(panel_bytes, I64(panel))) for panel in range(panels)]

        def step(i: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
            q_at, k_at = b.add(q, b.mul(i, I64(4 * rows))), b.mul(i, I64(32))
            keys = [emit_halves(b, b.add(place, k_at)) for place in places]
            for row in range(rows):
                query = emit_splat(b, F32, emit_load(b, F32.element, b.add(q_at, I64(4 * row))))
                for panel, key in enumerate(keys):
                    at = row * panels + panel
                    acc[at] = emit_fma(b, key, query, acc[at])
            return acc

        sums = emit_sum(b, head_dim, [constant(F32, 0.0)] * (rows * panels), step)
        for at, value in enumerate(sums):
            offset = 4 * BLOCK * (at // panels) + 64 * (at % panels)
            b.store(value, b.inttoptr(b.add(out, I64(offset)), F32.as_pointer()), align=4)
        return out

    @intrinsic
    def score(typingctx: Any, q: Any, k: Any, head_dim: Any, out: Any) -> Any:
        return word(types.void, [types.int64] * 4, emit)

    return score


def weigh_word(rows: int, vectors: int, head_dim: int) -> Any:
    """The word weigh(p, v, out): out[row][..] += sum over 64 cells of p[row][cell] * v[cell][..], some vectors wide."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        p, v, out = args
        offsets = [4 * head_dim * row + 64 * vector for row in range(rows) for vector in range(vectors)]
        start = [emit_load(b, F32, b.add(out, I64(offset))) for offset in offsets]

        def step(cell: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
            p_at, v_at = b.add(p, b.mul(cell, I64(4))), b.add(v, b.mul(cell, I64(2 * head_dim)))
            values = [emit_halves(b, b.add(v_at, I64(32 * vector))) for vector in range(vectors)]
            for row in range(rows):
                weight = emit_splat(b, F32, emit_load(b, F32.element, b.add(p_at, I64(4 * BLOCK * row))))
                for vector, value in enumerate(values):
                    at = row * vectors + vector
                    acc[at] = emit_fma(b, value, weight, acc[at])
            return acc

        for offset, value in zip(offsets, emit_sum(b, I64(BLOCK), start, step), strict=True):
            b.store(value, b.inttoptr(b.add(out, I64(offset)), F32.as_pointer()), align=4)
        return out

    @intrinsic
    def weigh(typingctx: Any, p: Any, v: Any, out: Any) -> Any:
        return word(types.void, [types.int64] * 3, emit)

    return weigh


def widest(rows: int, limit: int) -> int:
    """How many vectors a tile of rows takes at a time: 4, 2 or 1, at most `limit`."""
    return next((n for n in (4, 2) if n * rows <= target().sums and limit % n == 0), 1)


@inline
def visible(cells: int, position: int, window: int) -> Any:
    """Which of sixteen cells a row at a position sees."""
    cell = load(i32x16, cells)
    return (cell <= splat(i32x16, int32(position))) & (cell > splat(i32x16, int32(position - window)))


def nothing_visible_word(rows: int) -> Any:
    """The word nothing_visible(cells, row_positions, window): whether no row of a tile sees any cell of a block."""

    @inline
    def nothing_visible(cells: int, row_positions: int, window: int) -> Any:
        low, high = load(int32, row_positions), load(int32, row_positions)
        for row in range(1, rows):
            position = load(int32, row_positions + 4 * row)
            low, high = min(low, position), max(high, position)
        for cell in range(0, BLOCK, 16):
            at = load(i32x16, cells + 4 * cell)
            if any_lane((at <= splat(i32x16, int32(high))) & (at > splat(i32x16, int32(low - window)))):
                return False
        return True

    return nothing_visible


def soften_word(head_dim: int) -> Any:
    """The word soften(p, cells, position, window, state, sums): scores of a row become weights, relative to the
    largest score so far; where that grows, what was summed before shrinks."""

    @inline
    def soften(p: int, cells: int, position: int, window: int, state: int, sums: int) -> None:
        top = splat(f32x16, MINUS_INFINITY)
        for cell in range(0, BLOCK, 16):
            seen = visible(cells + 4 * cell, position, window)
            scores = select(seen, load(f32x16, p + 4 * cell), splat(f32x16, MINUS_INFINITY))
            store(p + 4 * cell, scores)
            top = maximum(top, scores)
        old = load(float32, state)
        new = max(old, largest(top))
        base = new if new > MINUS_INFINITY else float32(0.0)
        denominator = splat(f32x16, float32(0.0))
        for cell in range(0, BLOCK, 16):
            weight = exp(load(f32x16, p + 4 * cell) - splat(f32x16, base))
            store(p + 4 * cell, weight)
            denominator = denominator + weight
        shrink = extract(exp(splat(f32x16, old - base)), 0)
        store(state, new)
        store(state + 4, load(float32, state + 4) * shrink + total(denominator))
        if shrink != float32(1.0):
            for i in range(0, head_dim, 16):
                store(sums + 4 * i, load(f32x16, sums + 4 * i) * splat(f32x16, shrink))

    return soften


def attend_word(rows: int, head_dim: int) -> Any:
    """The word attend(q, k, v, cells, row_positions, window, first, end, p, state) over blocks first .. end.

    state[row] = (largest score, denominator), then sums[row][head_dim]; it goes on from what it holds.
    """
    panels, vectors = widest(rows, 4), widest(rows, head_dim // 16)
    score, weigh = score_word(rows, panels), weigh_word(rows, vectors, head_dim)
    nothing_visible, soften = nothing_visible_word(rows), soften_word(head_dim)

    @inline
    def attend(
        q: int, k: int, v: int, cells: int, row_positions: int, window: int, first: int, end: int, p: int, state: int
    ) -> None:
        sums = state + 64 * rows
        for block in range(first, end):
            here = cells + 4 * BLOCK * block
            if nothing_visible(here, row_positions, window):
                continue
            for panel in range(0, 4, panels):
                score(q, k + 32 * head_dim * (4 * block + panel), head_dim, p + 64 * panel)
            for row in range(rows):
                position = int64(load(int32, row_positions + 4 * row))
                soften(p + 4 * BLOCK * row, here, position, window, state + 64 * row, sums + 4 * head_dim * row)
            for vector in range(0, head_dim // 16, vectors):
                weigh(p, v + 2 * head_dim * BLOCK * block + 32 * vector, sums + 64 * vector)

    return attend


def merge_word(head_dim: int) -> Any:
    """The word merge(whole, whole_sums, part, part_sums): a row's state joined with that of later cells.

    Cells are joined chunk by chunk in their order, so that it makes no difference which threads computed them.
    """

    @inline
    def merge(whole: int, whole_sums: int, part: int, part_sums: int) -> None:
        old, new = load(float32, whole), load(float32, part)
        top = max(old, new)
        base = top if top > MINUS_INFINITY else float32(0.0)
        keep, add = extract(exp(splat(f32x16, old - base)), 0), extract(exp(splat(f32x16, new - base)), 0)
        store(whole, top)
        store(whole + 4, load(float32, whole + 4) * keep + load(float32, part + 4) * add)
        for i in range(0, head_dim, 16):
            kept = load(f32x16, whole_sums + 4 * i) * splat(f32x16, keep)
            store(whole_sums + 4 * i, fma(load(f32x16, part_sums + 4 * i), splat(f32x16, add), kept))

    return merge


def prepare_word(rows: int, head_dim: int) -> Any:
    """The word prepare(state): a tile that has seen nothing."""

    @inline
    def prepare(state: int) -> None:
        for row in range(rows):
            store(state + 64 * row, MINUS_INFINITY)
            store(state + 64 * row + 4, float32(0.0))
        for i in range(0, rows * head_dim, 16):
            store(state + 64 * rows + 4 * i, splat(f32x16, float32(0.0)))

    return prepare
