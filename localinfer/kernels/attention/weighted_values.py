"""Weighted sums of the values of a page, with each row's weights. See `localinfer.kernels.attention.attend` for
layouts.

If values are dimensions of the keys, they are first transposed from panels to rows.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from localinfer.kernels.attention.cache_types import CACHE_TYPES, F32, CacheType
from localinfer.kernels.attention.scores import emit_strided_prefetch, largest_divisor
from localinfer.kernels.layout import PAGE_SIZE, PANEL_KEYS, row_state_bytes
from quant.jit.emit import I32, I64, emit_load, emit_splat
from quant.jit.emit_numeric import emit_accumulation_loop, emit_convert
from quant.jit.simd import emit_fma
from quant.jit.vectors import convert, f16x16, f32x16, inline, intrinsic, load, lowering, store


def make_accumulate_values(
    kind: CacheType, rows: int, vectors: int, value_dim: int, value_bytes: int, ahead_bytes: int
) -> Any:
    """Make accumulate(p, v, sums, ahead, n_entries): sums[row][..] += p[row][entry] * v[entry][..] over the first
    `n_entries` entries of a page, `vectors` vectors wide. Values of adjacent entries are `value_bytes` bytes apart."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        p, v, sums, ahead, n_entries = args
        offsets = [row_state_bytes(value_dim) * row + 64 * vector for row in range(rows) for vector in range(vectors)]
        start = [emit_load(b, F32, b.add(sums, I64(offset))) for offset in offsets]

        def step(entry: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
            emit_strided_prefetch(b, ahead, entry, ahead_bytes)
            p_at, v_at = b.add(p, b.mul(entry, I64(4))), b.add(v, b.mul(entry, I64(value_bytes)))
            values = [kind.read(b, v_at, vector) for vector in range(vectors)]
            for row in range(rows):
                weight = emit_splat(b, F32, emit_load(b, F32.element, b.add(p_at, I64(4 * PAGE_SIZE * row))))
                for vector, value in enumerate(values):
                    at = row * vectors + vector
                    acc[at] = emit_fma(b, value, weight, acc[at])
            return acc

        for offset, value in zip(offsets, emit_accumulation_loop(b, n_entries, start, step), strict=True):
            b.store(value, b.inttoptr(b.add(sums, I64(offset)), F32.as_pointer()), align=4)
        return sums

    @intrinsic
    def accumulate(typingctx: Any, p: Any, v: Any, sums: Any, ahead: Any, n_entries: Any) -> Any:
        return lowering(types.void, [types.int64] * 5, emit)

    return accumulate


def make_accumulate_page(kind: CacheType, rows: int, value_dim: int, other_bytes: int) -> Any:
    """Make accumulate_page(p, v, sums, scaled_p, ahead, n_entries): add the weighted values of a page's first entries
    to the sums, and prefetch the `other_bytes` bytes of keys at `ahead`."""
    scaled, groups, code_bytes = kind.scaled, value_dim // 32, kind.code_bytes
    vectors = 2 if scaled else largest_divisor(rows, value_dim // 16)
    passes = value_dim // 16 // vectors
    prefetch_bytes = other_bytes // passes
    accumulate = make_accumulate_values(
        kind, rows, vectors, value_dim, groups * code_bytes, prefetch_bytes // PAGE_SIZE
    )
    scale_bytes = kind.scale_bytes(value_dim)

    @inline
    def scale_weights(p: int, scales: int, scaled_p: int) -> None:
        for entry in range(0, PAGE_SIZE, 16):
            scale = convert(f32x16, load(f16x16, scales + 2 * entry))
            for at in range(4 * entry, 4 * entry + 4 * PAGE_SIZE * rows, 4 * PAGE_SIZE):
                store(scaled_p + at, load(f32x16, p + at) * scale)

    @inline
    def accumulate_page(p: int, v: int, sums: int, scaled_p: int, ahead: int, n_entries: int) -> None:
        if scaled:
            for group in range(groups):
                scale_weights(p, v + 2 * PAGE_SIZE * group, scaled_p)
                accumulate(
                    scaled_p,
                    v + scale_bytes + code_bytes * group,
                    sums + 128 * group,
                    ahead + prefetch_bytes * group,
                    n_entries,
                )
        else:
            for n in range(passes):
                accumulate(
                    p, v + code_bytes // 2 * vectors * n, sums + 64 * vectors * n, ahead + prefetch_bytes * n, n_entries
                )

    return accumulate_page


def emit_transposed(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Transpose 16 vectors of 16 lanes, by swapping off-diagonal squares of size 1, 2, 4 and 8."""
    kind = ir.VectorType(I32, 16)
    for size in (1, 2, 4, 8):
        upper = ir.Constant(kind, [lane - size + 16 if lane & size else lane for lane in range(16)])
        lower = ir.Constant(kind, [lane + 16 if lane & size else lane + size for lane in range(16)])
        for i in range(16):
            if not i & size:
                one, other = rows[i], rows[i + size]
                rows[i], rows[i + size] = (b.shuffle_vector(one, other, mask) for mask in (upper, lower))
    return rows


def make_transpose_keys(kind: CacheType, key_dim: int) -> Any:
    """Make transpose_keys(k, out): store 32 dimensions of a page's keys as out[entry][32], float32."""
    panel_bytes, scale_bytes = PANEL_KEYS * kind.head_bytes(key_dim), 2 * PANEL_KEYS * kind.scaled
    dimension_step, vector_step = kind.dimensions

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        k, out = args
        for panel in range(PAGE_SIZE // PANEL_KEYS):
            panel_address = b.add(k, I64(panel_bytes * panel))
            keys = {}
            for step in range(16):
                line = b.add(panel_address, I64(scale_bytes + PANEL_KEYS * kind.code_bytes // 16 * step))
                for n in range(2):
                    keys[dimension_step * step + vector_step * n] = kind.read(b, line, n)
            if kind.scaled:
                scale = emit_convert(b, emit_load(b, f16x16.llvm, panel_address), types.float16, types.float32, F32)
                keys = {dimension: b.fmul(key, scale) for dimension, key in keys.items()}
            for first in (0, 16):
                for entry, values in enumerate(emit_transposed(b, [keys[first + i] for i in range(16)])):
                    address = b.add(out, I64(128 * (PANEL_KEYS * panel + entry) + 4 * first))
                    b.store(values, b.inttoptr(address, F32.as_pointer()), align=4)
        return out

    @intrinsic
    def transpose_keys(typingctx: Any, k: Any, out: Any) -> Any:
        return lowering(types.void, [types.int64] * 2, emit)

    return transpose_keys


def make_accumulate_keys(kind: CacheType, rows: int, key_dim: int, value_dim: int, other_bytes: int) -> Any:
    """Make accumulate_page for values that are the last dimensions of the keys: transpose 32 of them at a time, in the
    scratch that otherwise holds scaled weights."""
    transpose_keys, groups, group_bytes = (
        make_transpose_keys(kind, key_dim),
        value_dim // 32,
        PANEL_KEYS * kind.group_bytes,
    )
    first = (key_dim - value_dim) // 32
    vectors = largest_divisor(rows, 2)
    prefetch_bytes = other_bytes // (groups * (2 // vectors))
    accumulate = make_accumulate_values(CACHE_TYPES["f32"], rows, vectors, value_dim, 128, prefetch_bytes // PAGE_SIZE)

    @inline
    def accumulate_page(p: int, k: int, sums: int, transposed: int, ahead: int, n_entries: int) -> None:
        for group in range(groups):
            transpose_keys(k + group_bytes * (first + group), transposed)
            for column in range(0, 128, 64 * vectors):
                prefetch_address = ahead + prefetch_bytes * (2 * group + column // 64) // vectors
                accumulate(p, transposed + column, sums + 128 * group + column, prefetch_address, n_entries)

    return accumulate_page
