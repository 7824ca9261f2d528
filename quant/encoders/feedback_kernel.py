"""The kernel that rounds the columns of blocks one after the other and propagates the errors (GPTQ).

`quant.encoders.feedback` explains the algorithm. The kernel is assembled from inlined functions of the format.
"""

from importlib import import_module
from typing import Any

from numba import float32, int64, types, uint8

from quant.encoders.feedback import LANES
from quant.encoders.searches.table import make_nearest_entry
from quant.encoders.vector_math import broadcast, safe_reciprocals
from quant.jit.threads import chunk_range
from quant.jit.vectors import (
    Vector,
    convert,
    f32x16,
    fma,
    inline,
    load,
    maximum,
    minimum,
    rint,
    splat,
    store,
    u8x32,
)
from quant.packing.format_spec import FormatSpec, KernelBody

WIDE = 4 * LANES * 256
X, W, CODES = 0, WIDE, 2 * WIDE  # offsets in scratch memory: targets, weights and codes, one row of lanes per column
SCALES, MINS = CODES + LANES * 256, CODES + LANES * 256 + 4 * LANES * 16  # one row of lanes per group
ROW = MINS + 4 * LANES * 16  # the codes, or the scales, of one row


def make_load_scales(spec: FormatSpec, pitch: int) -> Any:
    """Make the inlined function load_scales(block, scales, mins, spare), which decodes the scales and mins of a block.

    They are stored `pitch` bytes apart; `spare` is the address of 128 bytes of scratch memory.
    """
    scales_of, mins_of = spec.scales, spec.mins or spec.scales
    scale, least = spec.group_scale, spec.group_min or spec.group_scale
    groups, zero = spec.n_groups, spec.zero_point

    @inline
    def of_superblock(block: int, scales: int, mins: int, spare: int) -> None:
        store(spare, scales_of(block))
        store(spare + 64, mins_of(block))
        for group in range(groups):
            store(scales + pitch * group, load(float32, spare + 4 * group))
            store(mins + pitch * group, float32(0.0) if zero else load(float32, spare + 64 + 4 * group))

    @inline
    def of_block(block: int, scales: int, mins: int, spare: int) -> None:
        store(scales, scale(block, 0))
        store(mins, float32(0.0) if zero else least(block, 0))

    return of_block if spec.codes32 else of_superblock


def make_store_block_codes(format_module: str, width: int) -> Any:
    """Make the inlined function store_block_codes(block, codes), which packs the codes of a block, one byte each."""
    module = import_module(f"quant.formats.{format_module}")
    if width == 256:
        return module.store_codes
    store_codes32 = module.store_codes32

    @inline
    def store_block_codes(block: int, codes: int) -> None:
        store_codes32(block, load(u8x32, codes))

    return store_block_codes


def make_nearest(spec: FormatSpec, lanes: int = LANES) -> Any:
    """Make the inlined function nearest(t), which rounds weights that are given in units of their scales.

    It returns the nearest values that codes stand for, and these codes as stored in blocks, one byte in each lane.
    """
    floats, ints, codes = (Vector(element, lanes) for element in (types.float32, types.int32, types.uint8))
    zero, top = spec.zero_point, 2**spec.bits - 1

    @inline
    def nearest_code(t: Any) -> Any:
        low, high = splat(floats, float32(-zero)), splat(floats, float32(top - zero))
        steps = minimum(maximum(rint(t), low), high)
        return steps, convert(codes, convert(ints, steps - low))

    if not spec.table:
        return nearest_code
    value_of = make_nearest_entry(spec.table, floats, spec.table)
    place_of = make_nearest_entry(spec.table, ints, range(len(spec.table)))

    @inline
    def nearest_entry(t: Any) -> Any:
        return value_of(t), convert(codes, place_of(t))

    return nearest_entry


def make_round_columns(spec: FormatSpec, width: int) -> Any:
    """Make the inlined function round_columns(a, a_stride, errors, scratch): sixteen rows, column by column.

    The error of column i, relative to the weight and not to its target, times a[i][j] is added to each later column j.
    """
    group, nearest = spec.group_size, make_nearest(spec)

    @inline
    def round_columns(a: int, a_stride: int, errors: int, scratch: int) -> None:
        for i in range(width):
            at = 4 * LANES * (i // group)
            scale, least = load(f32x16, scratch + SCALES + at), load(f32x16, scratch + MINS + at)
            steps, code = nearest((load(f32x16, scratch + X + 4 * LANES * i) - least) * safe_reciprocals(scale))
            store(scratch + CODES + LANES * i, code)
            error = load(f32x16, scratch + W + 4 * LANES * i) - fma(steps, scale, least)
            store(errors + 4 * LANES * i, error)
            for j in range(i + 1, width):
                address = scratch + X + 4 * LANES * j
                store(address, fma(error, broadcast(load(float32, a + a_stride * i + 4 * j)), load(f32x16, address)))

    return round_columns


def feedback(format_module: str) -> KernelBody:
    """Make the kernel for one block of each of several rows. The scales of the blocks must already be stored.

    x: the target values, in rows x_stride bytes apart; w: the weights, in rows w_stride bytes apart; a: the columns'
    square part of the Cholesky factor, in rows a_stride bytes apart; y: the blocks; errors: float32 (ceil(rows /
    LANES), columns, LANES), the errors of the weights.
    """
    spec: FormatSpec = import_module(f"quant.formats.{format_module}").SPEC
    width = 32 if spec.codes32 else 256
    load_scales, store_block_codes = make_load_scales(spec, 4 * LANES), make_store_block_codes(format_module, width)
    round_columns = make_round_columns(spec, width)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range((args.rows + LANES - 1) // LANES, 1, chunk_index, n_chunks)
        for tile in range(first, end):
            valid = min(int64(LANES), args.rows - LANES * tile)
            for lane in range(LANES):
                row = LANES * tile + min(lane, valid - 1)
                address = scratch + 4 * lane
                load_scales(args.y + args.row_bytes * row, address + SCALES, address + MINS, scratch + ROW)
                for column in range(width):
                    at = 4 * (LANES * column + lane)
                    store(scratch + X + at, load(float32, args.x + args.x_stride * row + 4 * column))
                    store(scratch + W + at, load(float32, args.w + args.w_stride * row + 4 * column))
            round_columns(args.a, args.a_stride, args.errors + 4 * LANES * width * tile, scratch)
            for lane in range(valid):
                for column in range(width):
                    store(scratch + ROW + column, load(uint8, scratch + CODES + LANES * column + lane))
                store_block_codes(args.y + args.row_bytes * (LANES * tile + lane), scratch + ROW)

    return body
