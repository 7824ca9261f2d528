"""Weighted sums of the values of a page, with each row's weights. See `localinfer.kernels.attention.attend` for
layouts.

If values are dimensions of the keys, they are first transposed from panels to rows.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types

from localinfer.kernels.attention.cache_types import CACHE_TYPES, F32, CacheType
from localinfer.kernels.attention.scores import (
    emit_strided_prefetch,
    multiplication_order,
    row_blocks,
    vectors_at_a_time,
)
from localinfer.kernels.attention.shape import AttentionVariant, HeadSizes
from localinfer.kernels.layout import PAGE_SIZE, PANEL_KEYS
from quant.jit.emit import I32, I64, emit_load, emit_splat
from quant.jit.emit_numeric import emit_accumulation_loop, emit_convert
from quant.jit.simd import emit_fma
from quant.jit.vectors import convert, f16x16, f32x16, inline, intrinsic, load, lowering, store


def make_accumulate_values(kind: CacheType, rows: int, vectors: int, prefetch_lines: int) -> Any:
    """Make accumulate(p, v, value_bytes, sums, state_bytes, n_entries, ahead, ahead_step): sums[row][..] +=
    p[row][entry] * v[entry][..] over the first `n_entries` entries of a page, `vectors` vectors wide. Values of
    adjacent entries are `value_bytes` bytes apart, sums of adjacent rows `state_bytes` bytes.

    Each entry prefetches `prefetch_lines` cache lines, `ahead_step` bytes after those of the entry before.
    """

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        p, v, value_bytes, sums, state_bytes, n_entries, ahead, ahead_step = args

        def step(block: range, entry: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
            emit_strided_prefetch(b, ahead, ahead_step, entry, 0 if block.start else prefetch_lines)
            p_at, v_at = b.add(p, b.mul(entry, I64(4))), b.add(v, b.mul(entry, value_bytes))
            values = [kind.read(b, v_at, vector) for vector in range(vectors)]
            for at, (row, vector) in enumerate(multiplication_order(block, vectors)):
                weight = emit_splat(b, F32, emit_load(b, F32.element, b.add(p_at, I64(4 * PAGE_SIZE * row))))
                acc[at] = emit_fma(b, values[vector], weight, acc[at])
            return acc

        for block in row_blocks(rows, vectors):
            addresses = [
                b.add(sums, b.add(b.mul(state_bytes, I64(row)), I64(64 * vector)))
                for row, vector in multiplication_order(block, vectors)
            ]
            start = [emit_load(b, F32, address) for address in addresses]
            after = emit_accumulation_loop(b, n_entries, start, partial(step, block))
            for address, value in zip(addresses, after, strict=True):
                b.store(value, b.inttoptr(address, F32.as_pointer()), align=4)
        return sums

    @intrinsic
    def accumulate(
        typingctx: Any, p: Any, v: Any, value_bytes: Any, sums: Any, state_bytes: Any, n_entries: Any, ahead: Any,
        ahead_step: Any,
    ) -> Any:  # fmt: skip
        return lowering(types.void, [types.int64] * 8, emit)

    return accumulate


def prefetch_lines(keys: CacheType, vectors: int) -> int:
    """Return the cache lines of the next page's keys to prefetch with `vectors` vectors of an entry's values."""
    return -(-vectors * keys.group_bytes // 128)


def make_accumulate_floats(variant: AttentionVariant) -> Any:
    """Make accumulate_page for values of floats."""
    keys, values, rows = variant.keys, variant.values, variant.rows
    wide, vector_bytes = vectors_at_a_time(rows, 4), variant.values.code_bytes // 2
    narrow = min(wide, 2)  # heads have an even number of vectors
    accumulate_wide, accumulate_narrow = (
        make_accumulate_values(values, rows, vectors, prefetch_lines(keys, vectors)) for vectors in (wide, narrow)
    )

    @inline
    def accumulate_page(weights: int, v: int, sums: int, n_entries: int, ahead: int, sizes: HeadSizes) -> None:
        vectors, vector = sizes.value_dim // 16, 0
        value_bytes, ahead_bytes = vectors * vector_bytes, PAGE_SIZE * sizes.k_step
        while vector < vectors:
            first, out, next_keys = v + vector_bytes * vector, sums + 64 * vector, ahead + ahead_bytes * vector
            if vectors - vector >= wide:
                accumulate_wide(
                    weights, first, value_bytes, out, sizes.state_bytes, n_entries, next_keys, wide * sizes.k_step
                )
                vector += wide
            elif narrow < wide:
                accumulate_narrow(
                    weights, first, value_bytes, out, sizes.state_bytes, n_entries, next_keys, narrow * sizes.k_step
                )
                vector += narrow

    return accumulate_page


def make_accumulate_quantized(variant: AttentionVariant) -> Any:
    """Make accumulate_page for quantized values: for each group of 32 values, the weights are multiplied by the
    scales."""
    rows, code_bytes, weights_bytes = variant.rows, variant.values.code_bytes, 4 * PAGE_SIZE * variant.rows
    accumulate = make_accumulate_values(variant.values, rows, 2, prefetch_lines(variant.keys, 2))

    @inline
    def scale_weights(weights: int, scales: int, out: int) -> None:
        for entry in range(0, PAGE_SIZE, 16):
            scale = convert(f32x16, load(f16x16, scales + 2 * entry))
            for at in range(4 * entry, 4 * entry + weights_bytes, 4 * PAGE_SIZE):
                store(out + at, load(f32x16, weights + at) * scale)

    @inline
    def accumulate_page(weights: int, v: int, sums: int, n_entries: int, ahead: int, sizes: HeadSizes) -> None:
        groups, scaled_weights = sizes.value_dim // 32, weights + weights_bytes
        codes = v + 2 * PAGE_SIZE * groups
        for group in range(groups):
            scale_weights(weights, v + 2 * PAGE_SIZE * group, scaled_weights)
            accumulate(
                scaled_weights,
                codes + code_bytes * group,
                groups * code_bytes,
                sums + 128 * group,
                sizes.state_bytes,
                n_entries,
                ahead + 2 * PAGE_SIZE * sizes.k_step * group,
                2 * sizes.k_step,
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


def make_transpose_keys(kind: CacheType) -> Any:
    """Make transpose_keys(k, panel_bytes, out): store 32 dimensions of a page's keys as out[entry][32], float32. Panels
    are `panel_bytes` bytes apart."""
    scale_bytes, line_bytes = 2 * PANEL_KEYS * kind.scaled, PANEL_KEYS * kind.code_bytes // 16
    dimension_step, vector_step = kind.dimensions

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        k, panel_bytes, out = args
        for panel in range(PAGE_SIZE // PANEL_KEYS):
            panel_address = b.add(k, b.mul(panel_bytes, I64(panel)))
            keys = {}
            for step in range(16):
                line = b.add(panel_address, I64(scale_bytes + line_bytes * step))
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
    def transpose_keys(typingctx: Any, k: Any, panel_bytes: Any, out: Any) -> Any:
        return lowering(types.void, [types.int64] * 3, emit)

    return transpose_keys


def make_accumulate_keys(variant: AttentionVariant) -> Any:
    """Make accumulate_page for values that are the last dimensions of the keys: 32 of them at a time are
    transposed."""
    keys, rows, weights_bytes = variant.keys, variant.rows, 4 * PAGE_SIZE * variant.rows
    transpose_keys, group_bytes = make_transpose_keys(keys), keys.panel_group_bytes
    vectors = vectors_at_a_time(rows, 2)
    accumulate = make_accumulate_values(CACHE_TYPES["f32"], rows, vectors, prefetch_lines(keys, vectors))

    @inline
    def accumulate_page(weights: int, k: int, sums: int, n_entries: int, ahead: int, sizes: HeadSizes) -> None:
        groups, transposed = sizes.key_dim // 32, weights + weights_bytes
        first = groups - sizes.value_dim // 32
        for group in range(groups - first):
            transpose_keys(k + group_bytes * (first + group), groups * group_bytes, transposed)
            for vector in range(0, 2, vectors):
                accumulate(
                    weights,
                    transposed + 64 * vector,
                    128,
                    sums + 128 * group + 64 * vector,
                    sizes.state_bytes,
                    n_entries,
                    ahead + PAGE_SIZE * sizes.k_step * (2 * group + vector),
                    vectors * sizes.k_step,
                )

    return accumulate_page


def make_accumulate_page(variant: AttentionVariant) -> Any:
    """Make accumulate_page(weights, v, sums, n_entries, ahead, sizes): add the weighted values of a page's first
    entries to the sums, and prefetch the keys at `ahead`. `v` is the page of values, or of the keys that they are
    dimensions of; scratch follows the weights."""
    if variant.values_in_keys:
        return make_accumulate_keys(variant)
    return make_accumulate_quantized(variant) if variant.values.scaled else make_accumulate_floats(variant)
