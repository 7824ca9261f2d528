"""The second matrix of LoRA adapters, and their scales: see `localinfer.graph.properties.adapters`.

A row x of A's products has `rank` values. Each 16 of them belong to one adapter, and are multiplied by its factor and
by the scale that the row's token has for it: `scales` are float32 [token][count], `owners` the adapters, int32
[rank / 16], `factors` float32 [rank / 16].
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int32, int64

from localinfer.kernels.layout import LOW_RANK_PANEL, LOW_RANK_TILE
from quant.jit.threads import chunk_range
from quant.jit.vectors import convert, f16x16, f32x16, fma, inline, load, prefetch_l1, splat, store

Body = Callable[..., None]


@inline
def scale_row(args: Any, entry: int, x: int, out: int) -> None:
    """Write a row of x times the factors and the scales of its token to `out`."""
    scales = args.scales + 4 * args.count * entry
    for i in range(args.rank // 16):
        scale = load(float32, scales + 4 * int64(load(int32, args.owners + 4 * i)))
        store(out + 64 * i, splat(f32x16, scale * load(float32, args.factors + 4 * i)) * load(f32x16, x + 64 * i))


def scale_low_rank() -> Body:
    """Make the kernel x[row] *= factor * scale, in place. The token of a row is order[row] // used; rows with a
    negative one are empty."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(load(int64, args.tokens), 1, chunk_index, n_chunks)
        for row in range(first, end):
            entry = int64(load(int32, args.order + 4 * row))
            if entry >= 0:
                x = args.x + 4 * args.rank * row
                scale_row(args, entry // args.used, x, x)

    return body


@inline
def load_f32(address: int) -> Any:
    """Load sixteen float32 weights."""
    return load(f32x16, address)


@inline
def load_f16(address: int) -> Any:
    """Load sixteen float16 weights."""
    return convert(f32x16, load(f16x16, address))


LOADS = {"f32": (load_f32, 64), "f16": (load_f16, 32)}  # and the bytes of sixteen weights


@inline
def add_sums(sums: Any, y: int, valid: int, lanes: int) -> None:
    """Add the first `valid` sums of a panel to y. `lanes` is scratch memory for sixteen floats."""
    if valid >= LOW_RANK_PANEL:
        store(y, load(f32x16, y) + sums)
    else:
        store(lanes, sums)
        for i in range(valid):
            store(y + 4 * i, load(float32, y + 4 * i) + load(float32, lanes + 4 * i))


def make_add_row(format_module: str) -> Any:
    """Make add_row(args, panel, row, x, lanes), which adds the products of a panel and the scaled row x to y."""
    load_weights, weight_bytes = LOADS[format_module]

    @inline
    def add_row(args: Any, panel: int, row: int, x: int, lanes: int) -> None:
        weights, sums = args.b + weight_bytes * args.rank * panel, splat(f32x16, float32(0.0))
        for column in range(args.rank):
            x_column = splat(f32x16, load(float32, x + 4 * column))
            sums = fma(load_weights(weights + weight_bytes * column), x_column, sums)
        first = LOW_RANK_PANEL * panel
        add_sums(sums, args.y + 4 * (args.n * row + first), args.n - first, lanes)

    return add_row


def make_add_panels(format_module: str) -> Any:
    """Make add_panels(args, panel, row, x, lanes), which does the same for four panels, whose sums do not wait for each
    other."""
    load_weights, weight_bytes = LOADS[format_module]

    @inline
    def add_panels(args: Any, panel: int, row: int, x: int, lanes: int) -> None:
        panel_bytes = weight_bytes * args.rank
        weights, zero = args.b + panel_bytes * panel, splat(f32x16, float32(0.0))
        s0, s1, s2, s3 = zero, zero, zero, zero
        for column in range(args.rank):
            w, x_column = weights + weight_bytes * column, splat(f32x16, load(float32, x + 4 * column))
            for line in range(0, 4 * weight_bytes, 64):
                prefetch_l1(weights + 4 * panel_bytes + 4 * weight_bytes * column + line)
            s0 = fma(load_weights(w), x_column, s0)
            s1 = fma(load_weights(w + panel_bytes), x_column, s1)
            s2 = fma(load_weights(w + 2 * panel_bytes), x_column, s2)
            s3 = fma(load_weights(w + 3 * panel_bytes), x_column, s3)
        first = LOW_RANK_PANEL * panel
        y, valid, panel_y = args.y + 4 * (args.n * row + first), args.n - first, 4 * LOW_RANK_PANEL
        add_sums(s0, y, valid, lanes)
        add_sums(s1, y + panel_y, valid - LOW_RANK_PANEL, lanes)
        add_sums(s2, y + 2 * panel_y, valid - 2 * LOW_RANK_PANEL, lanes)
        add_sums(s3, y + 3 * panel_y, valid - 3 * LOW_RANK_PANEL, lanes)

    return add_panels


def make_add_tile(format_module: str) -> Any:
    """Make add_tile(args, panel, row, x, lanes), which does the same for four rows. Each weight is loaded once."""
    load_weights, weight_bytes = LOADS[format_module]

    @inline
    def add_tile(args: Any, panel: int, row: int, x: int, lanes: int) -> None:
        weights, x_bytes = args.b + weight_bytes * args.rank * panel, 4 * args.rank
        zero = splat(f32x16, float32(0.0))
        s0, s1, s2, s3 = zero, zero, zero, zero
        for column in range(args.rank):
            w, at = load_weights(weights + weight_bytes * column), x + 4 * column
            s0 = fma(w, splat(f32x16, load(float32, at)), s0)
            s1 = fma(w, splat(f32x16, load(float32, at + x_bytes)), s1)
            s2 = fma(w, splat(f32x16, load(float32, at + 2 * x_bytes)), s2)
            s3 = fma(w, splat(f32x16, load(float32, at + 3 * x_bytes)), s3)
        first = LOW_RANK_PANEL * panel
        y, y_bytes, valid = args.y + 4 * (args.n * row + first), 4 * args.n, args.n - first
        add_sums(s0, y, valid, lanes)
        add_sums(s1, y + y_bytes, valid, lanes)
        add_sums(s2, y + 2 * y_bytes, valid, lanes)
        add_sums(s3, y + 3 * y_bytes, valid, lanes)

    return add_tile


def add_low_rank(format_module: str) -> Body:
    """Make the kernel y[row] += B (factor * scale * x[row]) for y with n values.

    x[row] are the values from `x_first` on of a row of `x_n`. `b` is [n / 16][rank][16], rounded up: the panels of B's
    rows. The token of a row is order[row], or without `order` the row's number. Each sum is computed from the first
    column of B to the last, whether or not rows are computed together.
    """
    add_row, add_panels, add_tile = (
        make(format_module) for make in (make_add_row, make_add_panels, make_add_tile)
    )

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range((args.n + LOW_RANK_PANEL - 1) // LOW_RANK_PANEL, 1, chunk_index, n_chunks)
        rows, x_bytes, scaled = load(int64, args.tokens), 4 * args.rank, scratch + 4 * LOW_RANK_PANEL
        inputs = args.x + 4 * args.x_first
        for start in range(0, rows, LOW_RANK_TILE):
            count = min(LOW_RANK_TILE, rows - start)
            for i in range(count):
                entry = int64(load(int32, args.order + 4 * (start + i))) if args.order else int64(start + i)
                scale_row(args, entry, inputs + 4 * args.x_n * (start + i), scaled + x_bytes * i)
            if count == LOW_RANK_TILE:
                for panel in range(first, end):
                    add_tile(args, panel, start, scaled, scratch)
            else:
                for i in range(count):
                    x, fours = scaled + x_bytes * i, first + (end - first) // 4 * 4
                    for panel in range(first, fours, 4):
                        add_panels(args, panel, start + i, x, scratch)
                    for panel in range(fours, end):
                        add_row(args, panel, start + i, x, scratch)

    return body
