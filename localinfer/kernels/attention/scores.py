"""Attention scores of a page: each row's query times the keys of 64 entries. See `localinfer.kernels.attention.attend`
for layouts."""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from llvmlite import ir
from numba import float32, types

from localinfer.kernels.attention.cache_types import F32, CacheType
from localinfer.kernels.attention.shape import AttentionVariant, HeadSizes
from localinfer.kernels.attention.tile_scratch import TileQueries
from localinfer.kernels.layout import PAGE_SIZE, PANEL_KEYS
from quant.jit.cpu import target
from quant.jit.emit import I64, constant, emit_load, emit_splat
from quant.jit.emit_numeric import emit_accumulation_loop, emit_convert, emit_prefetch
from quant.jit.simd import emit_fma
from quant.jit.vectors import convert, f16x16, f32x16, fma, inline, intrinsic, load, lowering, reduce_sum, splat, store


def emit_strided_prefetch(b: ir.IRBuilder, address: ir.Value, stride: ir.Value, step: ir.Value, lines: int) -> None:
    """Emit the prefetch of `lines` cache lines of the next loop's data in each step of this one. Those of adjacent
    steps are `stride` bytes apart."""
    here = b.add(address, b.mul(step, stride))
    for line in range(lines):
        emit_prefetch(b, b.add(here, I64(64 * line)), level=1)


def row_blocks(rows: int, vectors: int) -> list[range]:
    """Return the rows of a tile in blocks of about equal length, whose accumulators fit in registers if each row has
    `vectors` of them."""
    count = -(-rows * vectors // target().accumulators)
    return [range(rows * block // count, rows * (block + 1) // count) for block in range(count)]


def vectors_at_a_time(rows: int, limit: int) -> int:
    """Return the number of vectors that a tile of `rows` rows processes at a time: 4, 2 or 1, at most `limit`."""
    longest = max(map(len, row_blocks(rows, 1)))
    return next((n for n in (4, 2) if n <= limit and n * longest <= target().accumulators), 1)


def multiplication_order(block: range, vectors: int) -> list[tuple[int, int]]:
    """Return the pairs (row, vector) of a block of rows in the order in which they are multiplied: row after row if
    there are fewer vectors than rows and registers hold them beside the accumulators, else vector after vector.

    LLVM keeps what the outer loop's steps share in registers: `vectors` of the page, or a number of each row. If these
    are too many, it spills accumulators.
    """
    row_by_row = [(row, vector) for row in block for vector in range(vectors)]
    fits = vectors < target().spare_vectors  # one register is for the row's number
    return row_by_row if fits and vectors <= len(block) else sorted(row_by_row, key=itemgetter(1))


def make_score_panels(kind: CacheType, rows: int, panels: int, prefetch_lines: int) -> Any:
    """Make score(q, k, panel_bytes, out, pairs, ahead, ahead_step): out[row][16 * panel + entry] = q . k for adjacent
    panels of keys, which are `panel_bytes` apart, over `pairs` pairs of dimensions. For quantized keys, it adds to
    `out`.

    Each pair prefetches `prefetch_lines` cache lines, `ahead_step` bytes after those of the pair before.
    """
    dimension_step, vector_step = kind.dimensions
    scale_bytes, line_bytes = 2 * PANEL_KEYS * kind.scaled, PANEL_KEYS * kind.code_bytes // 16

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        q, k, panel_bytes, out, pairs, ahead, ahead_step = args
        panel_addresses = [b.add(k, b.mul(panel_bytes, I64(panel))) for panel in range(panels)]

        def step(block: range, i: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
            emit_strided_prefetch(b, ahead, ahead_step, i, 0 if block.start else prefetch_lines)
            q_at, k_at = b.add(q, b.mul(i, I64(4 * rows * dimension_step))), b.mul(i, I64(line_bytes))
            for n in range(2):
                keys = [
                    kind.read(b, b.add(panel_address, b.add(k_at, I64(scale_bytes))), n)
                    for panel_address in panel_addresses
                ]
                for at, (row, panel) in enumerate(multiplication_order(block, panels)):
                    query_at = b.add(q_at, I64(4 * (rows * vector_step * n + row)))
                    query = emit_splat(b, F32, emit_load(b, F32.element, query_at))
                    acc[at] = emit_fma(b, keys[panel], query, acc[at])
            return acc

        for block in row_blocks(rows, panels):
            sums = emit_accumulation_loop(b, pairs, [constant(F32, 0.0)] * (len(block) * panels), partial(step, block))
            if kind.scaled:
                halves = [emit_load(b, f16x16.llvm, panel_address) for panel_address in panel_addresses]
                scales = [emit_convert(b, half, types.float16, types.float32, F32) for half in halves]
            for (row, panel), value in zip(multiplication_order(block, panels), sums, strict=True):
                out_address = b.add(out, I64(4 * PAGE_SIZE * row + 64 * panel))
                if kind.scaled:
                    value = emit_fma(b, value, scales[panel], emit_load(b, F32, out_address))
                b.store(value, b.inttoptr(out_address, F32.as_pointer()), align=4)
        return out

    @intrinsic
    def score(
        typingctx: Any, q: Any, k: Any, panel_bytes: Any, out: Any, pairs: Any, ahead: Any, ahead_step: Any
    ) -> Any:
        return lowering(types.void, [types.int64] * 7, emit)

    return score


def make_initial_scores(kind: CacheType, rows: int) -> Any:
    """Make initialize_scores(q, key_dim, k, p): set the scores of a page to the product of each row's query, float32
    [rows][key_dim], and the page's anchor, or to 0 without anchors."""
    anchored = kind.anchored

    @inline
    def initialize_scores(q: int, key_dim: int, k: int, p: int) -> None:
        for row in range(rows):
            sums = splat(f32x16, float32(0.0))
            if anchored:
                for i in range(0, key_dim, 16):
                    anchor = convert(f32x16, load(f16x16, k + 2 * i))
                    sums = fma(anchor, load(f32x16, q + 4 * (key_dim * row + i)), sums)
                sums = splat(f32x16, reduce_sum(sums))
            for at in range(p + 4 * PAGE_SIZE * row, p + 4 * PAGE_SIZE * (row + 1), 64):
                store(at, sums)

    return initialize_scores


def make_score_group(variant: AttentionVariant, panels: int) -> Any:
    """Make score_panels(q, keys, p, ahead, sizes): compute the scores of `panels` adjacent panels."""
    kind, group_bytes = variant.keys, variant.keys.panel_group_bytes
    prefetch_lines = 0 if variant.values_in_keys else -(-panels * variant.values.group_bytes // 64)
    score = make_score_panels(kind, variant.rows, panels, prefetch_lines)
    query_bytes = 4 * 32 * variant.rows

    @inline
    def score_floats(q: int, keys: int, p: int, ahead: int, sizes: HeadSizes) -> None:
        panel_bytes = sizes.key_dim // 32 * group_bytes
        score(q, keys, panel_bytes, p, sizes.scored_dim // 2, ahead, panels * sizes.v_step)

    @inline
    def score_groups(q: int, keys: int, p: int, ahead: int, sizes: HeadSizes) -> None:
        groups, step = sizes.key_dim // 32, panels * sizes.v_step
        for group in range(groups):
            score(
                q + query_bytes * group,
                keys + group_bytes * group,
                groups * group_bytes,
                p,
                16,
                ahead + 16 * step * group,
                step,
            )

    return score_groups if kind.scaled else score_floats


def make_score_page(variant: AttentionVariant) -> Any:
    """Make score_page(queries, k, p, count, values, sizes): compute the scores of the first `count` panels of a page,
    or a few more, and prefetch the same fraction of the values at `values`. `queries` are `TileQueries`."""
    kind, rows = variant.keys, variant.rows
    wide, initialize_scores = vectors_at_a_time(rows, 4), make_initial_scores(kind, rows)
    narrow = max(1, wide // 2)
    score_wide = make_score_group(variant, wide)
    score_narrow = make_score_group(variant, narrow) if narrow < wide else score_wide
    scaled, group_bytes, anchor_bytes = kind.scaled, kind.panel_group_bytes, 2 * kind.anchored
    panels = PAGE_SIZE // PANEL_KEYS

    @inline
    def score_page(queries: TileQueries, k: int, p: int, count: int, values: int, sizes: HeadSizes) -> None:
        if scaled:
            initialize_scores(queries.rows, sizes.key_dim, k, p)
        keys, panel_bytes = k + anchor_bytes * sizes.key_dim, sizes.key_dim // 32 * group_bytes
        ahead_bytes, panel = sizes.v_page_bytes // panels, 0
        while panel < count:
            at, out, ahead = keys + panel_bytes * panel, p + 64 * panel, values + ahead_bytes * panel
            if count - panel > narrow:
                score_wide(queries.columns, at, out, ahead, sizes)
                panel += wide
            else:
                score_narrow(queries.columns, at, out, ahead, sizes)
                panel += narrow

    return score_page
