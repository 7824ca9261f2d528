"""Attention scores of a page: each row's query times the keys of 64 entries. See `localinfer.kernels.attention.attend`
for layouts."""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import float32, types

from localinfer.kernels.attention.cache_types import F32, CacheType
from localinfer.kernels.layout import PAGE_SIZE, PANEL_KEYS
from quant.jit.cpu import target
from quant.jit.emit import I64, constant, emit_load, emit_splat
from quant.jit.emit_numeric import emit_accumulation_loop, emit_convert, emit_prefetch
from quant.jit.simd import emit_fma
from quant.jit.vectors import convert, f16x16, f32x16, fma, inline, intrinsic, load, lowering, reduce_sum, splat, store


def emit_strided_prefetch(b: ir.IRBuilder, address: ir.Value, step: ir.Value, nbytes: int) -> None:
    """Emit the prefetch of `nbytes` bytes of the next loop's data in each step of this one."""
    here = b.add(address, b.mul(step, I64(nbytes)))
    for line in range(0, nbytes, 64):
        emit_prefetch(b, b.add(here, I64(line)), level=1)


def largest_divisor(rows: int, limit: int) -> int:
    """Return the number of vectors that a tile of `rows` rows processes at a time: 4, 2 or 1, at most `limit`."""
    return next((n for n in (4, 2) if n * rows <= target().accumulators and limit % n == 0), 1)


def make_score_panels(kind: CacheType, rows: int, panels: int, key_dim: int, dimensions: int, ahead_bytes: int) -> Any:
    """Make score(q, k, out, ahead): out[row][16 * panel + entry] = q . k for adjacent panels over `dimensions`
    dimensions. For quantized keys, it adds to `out`."""
    dimension_step, vector_step = kind.dimensions
    panel_bytes, scale_bytes = PANEL_KEYS * kind.head_bytes(key_dim), 2 * PANEL_KEYS * kind.scaled

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        q, k, out, ahead = args
        panel_addresses = [b.add(k, I64(panel_bytes * panel)) for panel in range(panels)]

        def step(i: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
            emit_strided_prefetch(b, ahead, i, ahead_bytes)
            q_at, k_at = b.add(q, b.mul(i, I64(4 * dimension_step))), b.mul(i, I64(PANEL_KEYS * kind.code_bytes // 16))
            for n in range(2):
                keys = [
                    kind.read(b, b.add(panel_address, b.add(k_at, I64(scale_bytes))), n)
                    for panel_address in panel_addresses
                ]
                for row in range(rows):
                    query_at = b.add(q_at, I64(4 * (key_dim * row + vector_step * n)))
                    query = emit_splat(b, F32, emit_load(b, F32.element, query_at))
                    for panel, key in enumerate(keys):
                        at = row * panels + panel
                        acc[at] = emit_fma(b, key, query, acc[at])
            return acc

        sums = emit_accumulation_loop(b, I64(dimensions // 2), [constant(F32, 0.0)] * (rows * panels), step)
        if kind.scaled:
            halves = [emit_load(b, f16x16.llvm, panel_address) for panel_address in panel_addresses]
            scales = [emit_convert(b, half, types.float16, types.float32, F32) for half in halves]
        for at, value in enumerate(sums):
            panel_address = b.add(out, I64(4 * PAGE_SIZE * (at // panels) + 64 * (at % panels)))
            if kind.scaled:
                value = emit_fma(b, value, scales[at % panels], emit_load(b, F32, panel_address))
            b.store(value, b.inttoptr(panel_address, F32.as_pointer()), align=4)
        return out

    @intrinsic
    def score(typingctx: Any, q: Any, k: Any, out: Any, ahead: Any) -> Any:
        return lowering(types.void, [types.int64] * 4, emit)

    return score


def make_initial_scores(kind: CacheType, rows: int, key_dim: int) -> Any:
    """Make initialize_scores(q, k, p): set the scores of a page to the product of each row's query and the page's
    anchor, or to 0 without anchors."""
    anchored = kind.anchored

    @inline
    def initialize_scores(q: int, k: int, p: int) -> None:
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


def make_score_page(kind: CacheType, rows: int, key_dim: int, key_size: int, other_bytes: int) -> Any:
    """Make score_page(q, k, p, ahead, count): compute the scores of the first `count` panels of a page, or a few more,
    and prefetch the same fraction of the `other_bytes` bytes of values at `ahead`."""
    wide, initialize_scores = largest_divisor(rows, 4), make_initial_scores(kind, rows, key_dim)
    narrow = max(1, wide // 2)
    whole = key_dim if kind.scaled else key_size + key_size % 2  # skip the padding of keys
    dimensions, prefetch_bytes = 32 if kind.scaled else whole, other_bytes // 4
    panel_bytes, group_bytes = PANEL_KEYS * kind.head_bytes(key_dim), PANEL_KEYS * kind.group_bytes
    scaled, groups, anchor_bytes = kind.scaled, key_dim // 32, kind.anchor_bytes(key_dim)

    def scores_of(panels: int) -> Any:
        """Make score_group(q, keys, p, ahead): compute the scores of `panels` adjacent panels."""
        score = make_score_panels(kind, rows, panels, key_dim, dimensions, prefetch_bytes * panels // (whole // 2))

        @inline
        def score_group(q: int, keys: int, p: int, ahead: int) -> None:
            if scaled:
                for group in range(groups):
                    score(
                        q + 128 * group,
                        keys + group_bytes * group,
                        p,
                        ahead + prefetch_bytes * panels // groups * group,
                    )
            else:
                score(q, keys, p, ahead)

        return score_group

    score_wide = scores_of(wide)
    score_narrow = scores_of(narrow) if narrow < wide else score_wide

    @inline
    def score_page(q: int, k: int, p: int, ahead: int, count: int) -> None:
        if scaled:
            initialize_scores(q, k, p)
        keys, panel = k + anchor_bytes, 0
        while panel < count:
            if count - panel > narrow:
                score_wide(q, keys + panel_bytes * panel, p + 64 * panel, ahead + prefetch_bytes * panel)
                panel += wide
            else:
                score_narrow(q, keys + panel_bytes * panel, p + 64 * panel, ahead + prefetch_bytes * panel)
                panel += narrow

    return score_page
