"""The register tile on CPUs with outer products: its integer sums are computed apart from the rest, in a mode without
the instructions for floats.

An outer product computes so many sums that they leave no registers for float sums. `quant.jit.sme` therefore stores the
integer sums of some records in memory, one of 32 rows by 32 tokens for each pass. Then they are scaled and added up as
in any other tile (`quant.matmul.tile`), a part of rows and tokens at a time whose float sums fit in registers.

  integer sums:  int32 [record][pass][half of the tokens][half of the rows][token][row]
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from llvmlite import ir
from numba import float32, types

from quant.jit.emit import I64, constant, emit_load
from quant.jit.emit_numeric import emit_accumulation_loop
from quant.jit.sme import SIDE, SUMS_BYTES, OuterSums, emit_outer_sums
from quant.jit.vectors import Vector, inline, intrinsic, lowering, prefetch_l2, splat, store
from quant.matmul.activations import count_superblocks
from quant.matmul.layout import GROUPS_PER_SUPERBLOCK, MAGIC_BITS, OUTER_RECORDS, record_bytes, starts_with_magic
from quant.matmul.tile import Tile

PART_ROWS, PART_TOKENS = SIDE // 2, 4  # half of the registers hold float sums


def make_integer_sums(shape: Tile, group: int) -> Any:
    """Return the inlined function integer_sums(panel, x, records, out): store the integer sums of a group of each
    record.

    The sums of the last pass begin with the start values (`quant.matmul.layout`).
    """
    first, passes = shape.group_size * group, shape.passes
    strides = shape.panel_record_bytes, record_bytes(SIDE, passes), SUMS_BYTES * passes
    bias = MAGIC_BITS if starts_with_magic(passes) else 0
    starts_at = 4 * SIDE * (8 * passes + shape.starts_row(group))

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        panel, x, records, out = args
        codes, starts = b.add(panel, I64(first * SIDE)), b.add(x, I64(starts_at))
        for number in range(passes):
            is_last = number == passes - 1
            start = None if is_last and shape.zero_point else bias if is_last else 0
            sums = OuterSums(shape.group_size // 4, strides, start)
            bytes_at, sums_at = b.add(x, I64((32 * number + first) * SIDE)), b.add(out, I64(SUMS_BYTES * number))
            emit_outer_sums(b, codes, bytes_at, starts, records, sums_at, sums)
        return out

    @intrinsic
    def integer_sums(typingctx: Any, panel: Any, x: Any, records: Any, out: Any) -> Any:
        return lowering(types.void, [types.int64] * 4, emit)

    return integer_sums


def emit_total(b: ir.IRBuilder, part: Tile, sums: ir.Value) -> ir.Value:
    """Return a token's integer sums over all passes."""
    addresses = [b.add(sums, I64(SUMS_BYTES * number)) for number in range(part.passes)]
    *high, last = [emit_load(b, part.int_vector, address) for address in addresses]
    return b.add(b.shl(high[0], constant(part.int_vector, 7)), last) if high else last


def make_add_part(shape: Tile, group: int) -> Any:
    """Return the inlined function add_part(panel, x, records, sums, out): add the sums of each record, scaled, to the
    float sums of a part of the tile.

    All addresses but that of the panel's codes are those of the part's first row and token.
    """
    part = replace(shape, rows=PART_ROWS, tokens=1)  # one token after the other needs few registers
    x_record, sums_record = record_bytes(SIDE, part.passes), SUMS_BYTES * part.passes

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        panel, x, records, sums, out = args

        def step(i: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
            panel_at, x_at = b.add(panel, b.mul(i, I64(part.panel_record_bytes))), b.add(x, b.mul(i, I64(x_record)))
            sums_at = b.add(sums, b.mul(i, I64(sums_record)))
            result = []
            for token, so_far in enumerate(acc):
                token_x, token_sums = b.add(x_at, I64(4 * token)), b.add(sums_at, I64(4 * PART_ROWS * token))
                total = emit_total(b, part, token_sums)
                scaled = part.emit_scaled(b, total, token_x, 0)
                result += part.emit_weighted(b, [scaled], [so_far], panel_at, token_x, group)
            return result

        addresses = [b.add(out, I64(4 * SIDE * token)) for token in range(PART_TOKENS)]
        acc = emit_accumulation_loop(b, records, [emit_load(b, part.float_vector, at) for at in addresses], step)
        for total, at in zip(acc, addresses, strict=True):
            b.store(total, b.inttoptr(at, part.float_vector.as_pointer()), align=4)
        return out

    @intrinsic
    def add_part(typingctx: Any, panel: Any, x: Any, records: Any, sums: Any, out: Any) -> Any:
        return lowering(types.void, [types.int64] * 5, emit)

    return add_part


class Records(NamedTuple):
    """Records of a tile: those from number `first` on, at most OUTER_RECORDS, of each position begin .. end - 1.

    There is room for `per_position` records of each position. A row has `per_row` records, which fill them in part.
    """

    begin: int
    end: int
    first: int
    per_row: int
    per_position: int


def make_add_records(shape: Tile, group: int) -> Any:
    """Return the inlined function add_records(panel, x, records, out, count, integers): add the sums of a group of each
    of the `Records` to the float sums of their positions.

    `panel` and `x` are the addresses of the first record, and `out` that of the sums of the first position.
    """
    integer_sums, add_part = make_integer_sums(shape, group), make_add_part(shape, group)
    record, x_record = shape.panel_record_bytes, record_bytes(SIDE, shape.passes)
    sums_record, out_step = shape.passes * SUMS_BYTES, shape.groups_per_record * SUMS_BYTES

    @inline
    def add_records(panel: int, x: int, records: Records, out: int, count: int, integers: int) -> None:
        n = min(OUTER_RECORDS, records.per_position - records.first)
        integer_sums(panel, x, n * (records.end - records.begin), integers)
        for position in range(records.begin, records.end):
            skipped = (position - records.begin) * records.per_position
            panel_at, x_at, sums_at = panel + skipped * record, x + skipped * x_record, integers + skipped * sums_record
            n_valid = min(n, (records.per_row + position) // GROUPS_PER_SUPERBLOCK - records.first)
            out_at = out + (position - records.begin) * out_step
            for token in range(0, count, PART_TOKENS):
                for half in range(2):
                    row, tile = PART_ROWS * half, token // PART_ROWS * 2 + half
                    part_sums = sums_at + 4 * PART_ROWS * (PART_ROWS * tile + token % PART_ROWS)
                    part_out = out_at + 4 * SIDE * token + 4 * row
                    add_part(panel_at + 4 * row, x_at + 4 * token, n_valid, part_sums, part_out)

    return add_records


def make_outer_tile_sums(shape: Tile) -> Any:
    """Return the inlined function sums(panel, x, records, out, count, ahead, ahead_bytes, subtract), as
    `make_tile_sums` of `quant.matmul.panels` does; `subtract` is not used. Memory for integer sums follows `out`.

    If positions have few records, those of several positions are multiplied at a time.
    """
    groups, row_of_zeros = shape.groups_per_record, Vector(types.float32, SIDE)
    first_group, last_group = make_add_records(shape, 0), make_add_records(shape, groups - 1)
    record, x_record, out_bytes = shape.panel_record_bytes, record_bytes(SIDE, shape.passes), SUMS_BYTES * groups

    @inline
    def add_one_group(panel: int, x: int, records: Records, out: int, count: int, integers: int) -> None:
        first_group(panel, x, records, out, count, integers)

    @inline
    def add_two_groups(panel: int, x: int, records: Records, out: int, count: int, integers: int) -> None:
        first_group(panel, x, records, out, count, integers)
        last_group(panel, x, records, out + SUMS_BYTES, count, integers)

    add_records = {1: add_one_group, 2: add_two_groups}[groups]

    @inline
    def sums(
        panel: int, x: int, records: int, out: int, count: int, ahead: int, ahead_bytes: int, subtract: int
    ) -> None:
        per_position, integers = count_superblocks(32 * records), out + GROUPS_PER_SUPERBLOCK * out_bytes
        together = max(1, OUTER_RECORDS // per_position)  # positions
        for block in range(GROUPS_PER_SUPERBLOCK * groups):
            for token in range((count + PART_TOKENS - 1) // PART_TOKENS * PART_TOKENS):
                store(out + SUMS_BYTES * block + 4 * SIDE * token, splat(row_of_zeros, float32(0.0)))
        for begin in range(0, GROUPS_PER_SUPERBLOCK, together):
            end, number = min(begin + together, GROUPS_PER_SUPERBLOCK), begin * per_position
            for line in range(ahead + begin * ahead_bytes, ahead + end * ahead_bytes, 64):
                prefetch_l2(line)
            for first in range(0, per_position, OUTER_RECORDS):
                panel_at, x_at = panel + (number + first) * record, x + (number + first) * x_record
                of_positions = Records(begin, end, first, records, per_position)
                add_records(panel_at, x_at, of_positions, out + begin * out_bytes, count, integers)

    return sums
