"""The kernel that rounds whole rows with low-rank error feedback, made of inlined functions of the format.

`quant.encoders.low_rank` explains the algorithm. The carried sums make every column depend on the one before it, so
enough rows are processed at once to hide the latency of the additions. The carried sums are loaded and stored only
every few columns, because memory access would otherwise dominate.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from llvmlite import ir
from numba import float32, int64, types

from quant.encoders.feedback_kernel import make_load_scales, make_nearest, make_store_block_codes
from quant.encoders.groups import make_group_transpose
from quant.encoders.low_rank import COLUMN_STEP, LANES
from quant.encoders.vector_math import safe_reciprocals
from quant.jit.emit import I32, I64, emit_load, slice_lanes
from quant.jit.threads import chunk_range
from quant.jit.vectors import Vector, f32x16, fma, inline, intrinsic, load, lowering, splat, store
from quant.packing.format_spec import FormatSpec, KernelBody

f32, u8 = Vector(types.float32, LANES), Vector(types.uint8, LANES)
WIDE = 4 * LANES
# Offsets in scratch memory: the weights of a group of columns and their codes, one lane per row; the scales, one row of
# lanes per group; the codes of a block of every row.
X, CODES, SCALES, INVERSES, MINS, ROWS = (WIDE * at for at in (0, 32, 40, 56, 72, 88))
SPARE = ROWS + 256 * LANES
CARRIED = SPARE + 256  # one row of lanes per component


@intrinsic
def transpose_codes(typingctx: Any, codes: Any, out: Any) -> Any:
    """Transpose sixteen columns of LANES bytes to LANES rows, 256 bytes apart, of sixteen bytes.

    Each of four steps interleaves columns i and i + 8 byte by byte; together they transpose squares of sixteen.
    """

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        source, destination = args
        columns = [emit_load(b, u8.llvm, b.add(source, I64(LANES * i))) for i in range(16)]
        pairs = [[first + i + more for first in range(0, LANES, 16) for i in range(8) for more in (0, LANES)]]
        pairs += [[lane + 8 for lane in pairs[0]]]
        masks = [ir.Constant(ir.VectorType(I32, LANES), lanes) for lanes in pairs]
        for _ in range(4):
            columns = [b.shuffle_vector(columns[i], columns[i + 8], mask) for i in range(8) for mask in masks]
        for row in range(LANES):
            v = slice_lanes(b, columns[row % 16], row // 16 * 16, 16)
            b.store(v, b.inttoptr(b.add(destination, I64(256 * row)), v.type.as_pointer()), align=1)
        return destination

    return lowering(types.void, [types.int64, types.int64], emit)


def make_round_group(spec: FormatSpec) -> Any:
    """Make the inlined function round_group(scratch, group, gains, couplings, components, rank).

    It rounds the codes of a group of columns, one row in each lane, using and updating the carried sums.
    """
    length, zero, nearest = spec.group_size, spec.zero_point, make_nearest(spec, LANES)

    @inline
    def nothing() -> Any:
        return splat(f32, float32(0.0))

    @inline
    def add(table: int, factor: Any, sums: Any) -> Any:
        return fma(factor, splat(f32, load(float32, table)), sums)

    @inline
    def round_column(scratch: int, group: int, column: int, shift: Any) -> Any:
        at = scratch + WIDE * group
        scale, inverse, least = load(f32, at + SCALES), load(f32, at + INVERSES), load(f32, at + MINS)
        weight = load(f32, scratch + X + WIDE * column)
        wanted = weight + shift if zero else weight + shift - least
        steps, code = nearest(wanted * inverse)
        store(scratch + CODES + LANES * column, code)
        return weight - (steps * scale if zero else fma(steps, scale, least))

    @inline
    def round_group(scratch: int, group: int, gains: int, couplings: int, components: int, rank: int) -> None:
        for column in range(0, length, COLUMN_STEP):
            table, pairs = 4 * rank * column, couplings + 4 * COLUMN_STEP * column
            a, b, c, d = nothing(), nothing(), nothing(), nothing()
            for k in range(rank):
                carried, at = load(f32, scratch + CARRIED + WIDE * k), gains + table + 4 * COLUMN_STEP * k
                a, b = add(at, carried, a), add(at + 4, carried, b)
                c, d = add(at + 8, carried, c), add(at + 12, carried, d)
            a = round_column(scratch, group, column, a)
            b = round_column(scratch, group, column + 1, add(pairs + 4, a, b))
            c = round_column(scratch, group, column + 2, add(pairs + 24, b, add(pairs + 8, a, c)))
            d = add(pairs + 44, c, add(pairs + 28, b, add(pairs + 12, a, d)))
            d = round_column(scratch, group, column + 3, d)
            for k in range(rank):
                address, at = scratch + CARRIED + WIDE * k, components + table + 4 * COLUMN_STEP * k
                ab = add(at + 4, b, add(at, a, load(f32, address)))
                store(address, add(at + 12, d, add(at + 8, c, ab)))

    return round_group


def low_rank(format_module: str) -> KernelBody:
    """Make the kernel that rounds the codes of rows whose blocks and scales are already stored.

    x: the weights, rows of n float32; gains and components: float32 (n / COLUMN_STEP, rank, COLUMN_STEP); couplings:
    float32 (n, COLUMN_STEP), how the error of a column shifts the other columns of its step; y: the blocks.
    """
    spec: FormatSpec = import_module(f"quant.formats.{format_module}").SPEC
    width = 32 if spec.codes32 else 256
    size, length = spec.superblock_bytes * width // 256, spec.group_size
    load_scales, store_block_codes, round_group = (
        make_load_scales(spec, WIDE),
        make_store_block_codes(format_module, width),
        make_round_group(spec),
    )
    transposed = make_group_transpose(length, WIDE)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range((args.rows + LANES - 1) // LANES, 1, chunk_index, n_chunks)
        for tile in range(first, end):
            row, valid = LANES * tile, min(int64(LANES), args.rows - LANES * tile)
            for k in range(args.rank):
                store(scratch + CARRIED + WIDE * k, splat(f32, float32(0.0)))
            for column in range(0, args.n, width):
                block = args.y + args.row_bytes * row + size * (column // width)
                for lane in range(LANES):
                    address = scratch + 4 * lane
                    load_scales(
                        block + args.row_bytes * min(lane, valid - 1), address + SCALES, address + MINS, scratch + SPARE
                    )
                for at in range(0, WIDE * width // length, 64):
                    store(scratch + INVERSES + at, safe_reciprocals(load(f32x16, scratch + SCALES + at)))
                for group in range(width // length):
                    here = column + length * group
                    for lane in range(0, LANES, 16):
                        source_row = row + min(lane, valid - 1)
                        count = max(min(int64(16), valid - lane), 1)
                        transposed(args.x + 4 * (args.n * source_row + here), 4 * args.n, count, scratch + X + 4 * lane)
                    table = 4 * args.rank * here
                    round_group(
                        scratch,
                        group,
                        args.gains + table,
                        args.couplings + 4 * COLUMN_STEP * here,
                        args.components + table,
                        args.rank,
                    )
                    for at in range(0, length, 16):
                        transpose_codes(scratch + CODES + LANES * at, scratch + ROWS + length * group + at)
                for lane in range(valid):
                    store_block_codes(block + args.row_bytes * lane, scratch + ROWS + 256 * lane)

    return body
