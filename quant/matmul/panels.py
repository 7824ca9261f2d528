"""Matrix multiplication for many tokens: rows are unpacked once into panels, which register tiles then multiply.

A panel is R rows in the order of the register tile (`quant.matmul.unpack`). As many panels are unpacked at a time as a
core's cache holds, and at least `MIN_PANELS`, so that the activations are read from far memory less often. The
activations of few tokens stay in the cache; then a single panel is unpacked at a time and used at once. While a panel
is multiplied, the next rows are prefetched in small pieces, because the memory bus is otherwise idle.
"""

from dataclasses import replace
from typing import Any

from numba import float32, int64, types

from quant.jit.cpu import target
from quant.jit.vectors import Vector, extract, inline, load, prefetch_l2, store
from quant.matmul.activations import count_superblocks
from quant.matmul.layout import (
    CACHED_TILES,
    CODES_STRIDE,
    GROUPS_PER_SUPERBLOCK,
    MIN_PANELS,
    PANEL_CACHE_BYTES,
    PANEL_ZERO_POINT,
    SCALES_STRIDE,
    has_two_conversions,
    integer_sums_bytes,
    record_bytes,
)
from quant.matmul.outer_tile import make_outer_tile_sums
from quant.matmul.output_init import init_output
from quant.matmul.row_access import ROW_ACCESS_WORDS
from quant.matmul.tile import Tile, make_sum_of_positions, make_tile
from quant.matmul.unpack import EARLY_PREFETCH_SHARE, PanelRows, make_unpack
from quant.matmul.work_division import make_divided_kernel
from quant.packing.format_spec import FormatSpec, KernelBody, load_spec


def format_tile(spec: FormatSpec, passes: int) -> Tile:
    """Return the full register tile of a format."""
    here, bits, zero = target(), spec.bits, spec.zero_point
    if here.has_signed_panels:
        zero = 0
    elif zero and here.has_exact_u8_dot:
        bits, zero = 8, PANEL_ZERO_POINT
    return Tile(
        rows=here.rows,
        tokens=here.tokens,
        panel_rows=here.rows,
        record_tokens=here.tokens,
        passes=passes,
        group_size=spec.group_size,
        bits=bits,
        zero_point=zero,
        code_shift=zero - spec.zero_point,
        has_mins=spec.mins is not None,
    )


def make_position_sums(shape: Tile, group: int) -> Any:
    """Return the inlined function position_sums(panel, x, records, out, count, subtract): sum group number `group` of
    each record of a position.

    A tile with few tokens takes a narrower path over the same records. `subtract` chooses the conversion of a whole
    one, if there are two.
    """
    tokens = shape.tokens
    third = tokens // 3 if tokens % 3 == 0 else tokens // 2
    narrow, medium = (make_tile(replace(shape, tokens=min(k * third, tokens)), group) for k in (1, 2))
    whole = make_whole_tile(shape, group)

    @inline
    def position_sums(panel: int, x: int, records: int, out: int, count: int, subtract: int) -> None:
        if count <= third:
            narrow(panel, x, records, out)
        elif count <= 2 * third:
            medium(panel, x, records, out)
        else:
            whole(panel, x, records, out, subtract)

    return position_sums


def make_whole_tile(shape: Tile, group: int) -> Any:
    """Return the inlined function whole(panel, x, records, out, subtract): see `make_position_sums`."""
    adding = make_tile(shape, group)

    @inline
    def one_way(panel: int, x: int, records: int, out: int, subtract: int) -> None:
        adding(panel, x, records, out)

    if not has_two_conversions(shape.passes):
        return one_way
    subtracting = make_tile(replace(shape, subtracts=True), group)

    @inline
    def two_ways(panel: int, x: int, records: int, out: int, subtract: int) -> None:
        if subtract:
            subtracting(panel, x, records, out)
        else:
            adding(panel, x, records, out)

    return two_ways


def make_tile_sums(shape: Tile) -> Any:
    """Return the inlined function sums(panel, x, records, out, count, ahead, ahead_bytes, subtract): a tile's sums for
    all positions.

    For each position of a group in a superblock, it also prefetches the next `ahead_bytes` bytes from `ahead` on.
    Scratch memory of `integer_sums_bytes` follows the sums.
    """
    if target().has_outer_products:
        return make_outer_tile_sums(shape)
    first, second = make_position_sums(shape, 0), make_position_sums(shape, shape.groups_per_record - 1)
    record, x_record = shape.panel_record_bytes, record_bytes(shape.record_tokens, shape.passes)
    out_bytes = 4 * shape.rows * shape.record_tokens

    @inline
    def sums_of_one_group(panel: int, x: int, records: int, out: int, count: int, subtract: int) -> None:
        first(panel, x, records, out, count, subtract)

    @inline
    def sums_of_two_groups(panel: int, x: int, records: int, out: int, count: int, subtract: int) -> None:
        first(panel, x, records, out, count, subtract)
        second(panel, x, records, out + out_bytes, count, subtract)

    position_sums = {1: sums_of_one_group, 2: sums_of_two_groups}[shape.groups_per_record]
    step = shape.groups_per_record * out_bytes

    @inline
    def sums(
        panel: int, x: int, records: int, out: int, count: int, ahead: int, ahead_bytes: int, subtract: int
    ) -> None:
        position_records = (records + GROUPS_PER_SUPERBLOCK - 1) // GROUPS_PER_SUPERBLOCK
        number = records
        while number < records + GROUPS_PER_SUPERBLOCK:  # LLVM would unroll a loop with a constant count of 8
            for line in range(ahead, ahead + ahead_bytes, 64):
                prefetch_l2(line)
            position_sums(panel, x, number // GROUPS_PER_SUPERBLOCK, out, count, subtract)
            panel, x, out = panel + position_records * record, x + position_records * x_record, out + step
            number, ahead = number + 1, ahead + ahead_bytes

    return sums


def make_store_results(shape: Tile) -> Any:
    """Return the inlined function store_results(out, y, y_stride, add, count, valid): reduce a tile's sums and store or
    add the results.

    Only `count` tokens and `valid` rows are stored.
    """
    rows, kind = shape.rows, Vector(types.float32, shape.rows)
    total_at = make_sum_of_positions(rows, 8 * shape.groups_per_record, 4 * rows * shape.record_tokens)

    @inline
    def store_results(out: int, y: int, y_stride: int, add: int, count: int, valid: int) -> None:
        for token in range(count):
            values, address = total_at(out + 4 * rows * token), y + token * y_stride
            if valid == rows:
                store(address, values + load(kind, address) if add else values)
            else:
                for i in range(valid):
                    value = extract(values, i)
                    store(address + 4 * i, value + load(float32, address + 4 * i) if add else value)

    return store_results


@inline
def balanced_block_rows(count: int, most: int, step: int) -> Any:
    """Return the number of rows in a block, a multiple of `step`.

    There are as few blocks as `most` rows allow, all of about equal size: a small last block would read all activations
    again for little work.
    """
    blocks = max(1, (count + most - 1) // most)
    return step * max(1, (count + step * blocks - 1) // (step * blocks))


def matmul(format_module: str, passes: int) -> KernelBody:
    """Return the kernel y[token][row] = base[token][row] + w[row] . x[token] for tiled tokens. `base` may be 0."""
    spec = load_spec(format_module)
    shape = format_tile(spec, passes)
    rows, tokens_at_once, record = shape.rows, shape.tokens, shape.panel_record_bytes
    unpack, sums, store_results = make_unpack(spec, shape), make_tile_sums(shape), make_store_results(shape)
    out_bytes = 4 * rows * tokens_at_once * 8 * shape.groups_per_record + integer_sums_bytes(passes)
    unpacked_bytes = rows * (CODES_STRIDE + 2 * SCALES_STRIDE)
    x_record, header = record_bytes(tokens_at_once, passes), spec.header_bytes

    @inline
    def multiply_panels(args: Any, first: int, end: int, first_tile: int, end_tile: int, scratch: int) -> None:
        """Multiply the rows first .. end - 1 by the tokens of the tiles first_tile .. end_tile - 1."""
        row_bytes, count, records = args.row_bytes, load(int64, args.tokens), args.n_in // 32
        subtract = load(int64, args.access + 8 * ROW_ACCESS_WORDS)
        unpacked, panels = scratch + out_bytes, scratch + out_bytes + unpacked_bytes
        position_records = count_superblocks(args.n_in)
        panel_bytes = GROUPS_PER_SUPERBLOCK * position_records * record
        x_bytes = GROUPS_PER_SUPERBLOCK * position_records * x_record
        tiles = end_tile - first_tile
        last = min(tiles, CACHED_TILES)  # the last tiles prefetch the next block
        most = max(MIN_PANELS, PANEL_CACHE_BYTES // panel_bytes) if tiles > CACHED_TILES else 1
        block, early = balanced_block_rows(end - first, rows * most, rows), rows * row_bytes // EARLY_PREFETCH_SHARE
        ahead_bytes = (rows * row_bytes - early) // (GROUPS_PER_SUPERBLOCK * last)
        init_output(args, first, end, tokens_at_once * first_tile, min(tokens_at_once * end_tile, count))
        for start in range(first, end, block):
            if load(int64, args.stop):
                return
            until = min(start + block, end)
            for row in range(start, until, rows):
                panel = panels + (row - start) // rows * panel_bytes
                source = PanelRows(args.w + header + row * row_bytes, row_bytes, min(rows, end - row))
                unpack(source, args.n_in, unpacked, panel)
            for tile in range(first_tile, end_tile):
                token, x_at, prefetch_index = tile * tokens_at_once, args.x + tile * x_bytes, tile - (end_tile - last)
                n_tokens, step = min(tokens_at_once, count - token), ahead_bytes if prefetch_index >= 0 else 0
                for row in range(start, until, rows):
                    panel = panels + (row - start) // rows * panel_bytes
                    ahead = args.w + (row + block) * row_bytes + early
                    ahead += prefetch_index * GROUPS_PER_SUPERBLOCK * step
                    sums(panel, x_at, records, scratch, n_tokens, ahead, step, subtract)
                    address = args.y + token * args.y_stride + 4 * row
                    store_results(scratch, address, args.y_stride, args.base, n_tokens, min(rows, end - row))

    return make_divided_kernel(multiply_panels, rows, tokens_at_once)
