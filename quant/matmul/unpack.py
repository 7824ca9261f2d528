"""Unpacking of weight rows into panels: R rows in the order of the register tile (`quant.matmul.tile`).

If codes are bit fields of bytes in column order, the packed bytes of all rows are transposed first and unpacked then,
because there are fewer of them. Otherwise a chunk of each row is unpacked to plain codes in scratch memory, which are
transposed; likewise scales and mins.
"""

from typing import Any, NamedTuple

from numba import float32, int64, uint8

from quant.jit.cpu import target
from quant.jit.vectors import inline, load, prefetch_l1, prefetch_l2, splat, store, u8x32, u8x64
from quant.matmul.activations import count_superblocks, index_of_record, padded_index
from quant.matmul.layout import CODES_STRIDE, GROUPS_PER_SUPERBLOCK, SCALES_STRIDE, UNPACK_COLUMNS
from quant.matmul.tile import Tile
from quant.matmul.transpose import make_store_codes, make_store_halves, make_store_scales, make_transpose
from quant.packing.format_spec import CodeLayout, FormatSpec, make_scales

# 1 / EARLY_PREFETCH_SHARE of the following rows is prefetched while a panel is unpacked, the rest while it is
# multiplied.
EARLY_PREFETCH_SHARE = 2


class PanelRows(NamedTuple):
    """The rows of a panel: the address of the first one's superblocks, the bytes of a row, and how many there are. Of
    fewer than R rows, the last one is repeated."""

    w: int
    row_bytes: int
    valid: int


# --- unpacked rows ------------------------------------------------------------------------------------------------


def make_write_codes(spec: FormatSpec, code_shift: int) -> Any:
    """Return the inlined function write_codes(row, first, end, codes): unpack the codes of columns first .. end.

    `code_shift` is added to all codes.
    """
    codes64, codes32, superblock_bytes = spec.codes64, spec.codes32, spec.superblock_bytes
    moved = uint8(code_shift % 256)

    @inline
    def superblocks(row: int, first: int, end: int, codes: int) -> None:
        for block in range(first // 256, end // 256):
            at, out = row + block * superblock_bytes, codes + 256 * block - first
            for j in range(4):
                store(out + 64 * j, codes64(at, j) + splat(u8x64, moved))

    @inline
    def with_rest(row: int, first: int, end: int, codes: int) -> None:
        superblocks(row, first, end, codes)
        for k in range(end // 256 * 8, end // 32):
            store(codes + 32 * k - first, codes32(row, k) + splat(u8x32, moved))

    return superblocks if codes32 is None else with_rest


def make_write_scales(spec: FormatSpec) -> Any:
    """Return the inlined function write_scales(row, first, end, scales, mins): unpack those of columns first .. end.

    Mins are written if the format has mins.
    """
    scales_of, mins_of, group_scale_of, group_min_of = make_scales(spec), spec.mins, spec.group_scale, spec.group_min
    superblock_bytes, groups, group, has_mins = spec.superblock_bytes, spec.n_groups, spec.group_size, bool(spec.mins)

    @inline
    def superblocks(row: int, first: int, end: int, scales: int, mins: int) -> None:
        for block in range(first // 256, end // 256):
            at, number = row + block * superblock_bytes, block - first // 256
            store(scales + 4 * groups * number, scales_of(at, block))
            if has_mins:
                store(mins + 4 * groups * number, mins_of(at))

    @inline
    def with_rest(row: int, first: int, end: int, scales: int, mins: int) -> None:
        superblocks(row, first, end, scales, mins)
        for g in range(end // 256 * groups, end // group):
            store(scales + 4 * (g - first // group), group_scale_of(row, g))
            if has_mins:
                store(mins + 4 * (g - first // group), group_min_of(row, g))

    return superblocks if group_scale_of is None else with_rest


# --- panels -------------------------------------------------------------------------------------------------------


def make_pack_codes(rows: int) -> Any:
    """Return the inlined function pack_codes(source, step, out): interleave 32 bytes of each of R rows, `step` bytes
    apart, by depth.
    """
    transpose = make_transpose(rows)

    @inline
    def pack_by_four(source: int, step: int, out: int) -> None:
        transpose(source, step, out, 8 * rows, 4 * rows)

    @inline
    def pack_by_eight(source: int, step: int, out: int) -> None:
        for i in range(rows):
            for k in range(4):
                store(out + 8 * (rows * k + i), load(int64, source + i * step + 8 * k))

    return {4: pack_by_four, 8: pack_by_eight}[target().depth]


def make_pack_scales(shape: Tile) -> Any:
    """Return the inlined function pack_scales(source, count, panel, position_records): store `count` groups' scales, or
    mins, in the records.

    `panel` is the address of the first of them. Each position of a group has `position_records` records.
    """
    rows, groups_per_record, record = shape.rows, shape.groups_per_record, shape.panel_record_bytes
    transpose = make_transpose(rows)

    @inline
    def pack_scales(source: int, count: int, panel: int, position_records: int) -> None:
        group_stride = record * position_records
        pair_step, single_step = (
            (2 * group_stride, group_stride) if groups_per_record == 1 else (group_stride, 4 * rows)
        )
        whole = count // (GROUPS_PER_SUPERBLOCK * groups_per_record) * (GROUPS_PER_SUPERBLOCK * groups_per_record)
        for group in range(0, whole, 8):
            out = panel + record * index_of_record(group // groups_per_record, position_records)
            transpose(source + 4 * group, SCALES_STRIDE, out, pair_step, single_step)
        for group in range(whole, count):
            index = index_of_record(
                padded_index(group // groups_per_record, count // groups_per_record), position_records
            )
            out = panel + record * index + 4 * rows * (group % groups_per_record)
            for i in range(rows):
                store(out + 4 * i, load(float32, source + i * SCALES_STRIDE + 4 * group))

    return pack_scales


@inline
def prefetch_piece(ahead: int, nbytes: int, number: int) -> None:
    """Prefetch piece `number`, of `nbytes` bytes, of the memory at `ahead`."""
    for line in range(ahead + nbytes * number, ahead + nbytes * (number + 1), 64):
        prefetch_l2(line)


def make_pack_row_codes(spec: FormatSpec, shape: Tile) -> Any:
    """Return the inlined function pack_row_codes(source, first, end, unpacked, out, position_records, ahead).

    It stores the codes of columns first .. end - 1 of the `PanelRows` in the records. `unpacked` is scratch
    memory for the unpacked codes. Meanwhile it prefetches memory at `ahead`, as large as the rows divided by
    EARLY_PREFETCH_SHARE.
    """
    rows, record, superblock_bytes = shape.rows, shape.panel_record_bytes, spec.superblock_bytes
    write_codes, pack_codes = make_write_codes(spec, shape.code_shift), make_pack_codes(rows)

    @inline
    def pack_row_codes(
        source: PanelRows, first: int, end: int, unpacked: int, out: int, position_records: int, ahead: int
    ) -> None:
        blocks = (end - first) // 32
        for i in range(rows):
            write_codes(source.w + min(i, source.valid - 1) * source.row_bytes, first, end, unpacked + i * CODES_STRIDE)
            prefetch_piece(ahead, blocks * superblock_bytes // 8 // EARLY_PREFETCH_SHARE, i)
        for number in range(blocks):
            index = index_of_record(padded_index(number, blocks), position_records)
            pack_codes(unpacked + 32 * number, CODES_STRIDE, out + record * index)

    return pack_row_codes


@inline
def no_scales(source: int, step: int, out: int, group_stride: int) -> None:
    """Store nothing."""


def make_pack_code_runs(spec: FormatSpec, layout: CodeLayout, shape: Tile) -> Any:
    """Return pack_row_codes for formats with a code layout: packed bytes are transposed, and scales and mins stored
    with the codes.

    If there are fewer than R valid rows, they are first copied, with the last row repeated.
    """
    rows, record, superblock_bytes = shape.rows, shape.panel_record_bytes, spec.superblock_bytes
    halves, multiples = layout.leading_halves, len(spec.scale_layouts)
    store_scales = make_store_scales(spec.scale_layouts, shape.groups_per_record, rows) if multiples else no_scales
    store_codes = make_store_codes(layout, rows, shape.code_shift)
    store_halves = make_store_halves(max(1, halves), rows)
    of_superblock, run_step, groups = 256 // layout.columns, layout.run_bytes, layout.columns // 32

    @inline
    def pack_code_runs(
        source: PanelRows, first: int, end: int, unpacked: int, out: int, position_records: int, ahead: int
    ) -> None:
        blocks, packed, step = (end - first) // 32, source.w + first // 256 * superblock_bytes, source.row_bytes
        if source.valid < rows:
            for i in range(rows):
                row = packed + min(i, source.valid - 1) * source.row_bytes
                for byte in range(blocks * superblock_bytes // 8):
                    store(unpacked + i * CODES_STRIDE + byte, load(uint8, row + byte))
            packed, step = unpacked, CODES_STRIDE
        for run in range(blocks // groups):
            at = packed + run // of_superblock * superblock_bytes + run % of_superblock * run_step
            address = out + record * index_of_record(padded_index(groups * run, blocks), position_records)
            store_codes(at, step, address, record * position_records)
            prefetch_piece(ahead, rows * superblock_bytes // of_superblock // EARLY_PREFETCH_SHARE, run)
            if halves:
                store_halves(at, step, address + 32 * rows)
        if multiples:
            for block in range(blocks // 8):
                address = out + record * block + 32 * rows
                store_scales(packed + block * superblock_bytes, step, address, record * position_records)

    return pack_code_runs


def make_unpack(spec: FormatSpec, shape: Tile) -> Any:
    """Return the inlined function unpack(source, n, unpacked, panel): unpack the `PanelRows`, of n weights each, into a
    panel.

    It prefetches the beginning of the following rows.
    """
    rows, record, has_mins, group = shape.rows, shape.panel_record_bytes, shape.has_mins, shape.group_size
    write_scales, pack_scales = make_write_scales(spec), make_pack_scales(shape)
    layout = spec.code_layout if target().depth == 4 else None
    pack_codes = make_pack_code_runs(spec, layout, shape) if layout else make_pack_row_codes(spec, shape)
    scales_in_layout = layout is not None and layout.leading_halves + len(spec.scale_layouts) > 0
    scales_at, superblock_bytes = rows * CODES_STRIDE, spec.superblock_bytes
    mins_at = scales_at + rows * SCALES_STRIDE

    @inline
    def unpack(source: PanelRows, n: int, unpacked: int, panel: int) -> None:
        w, row_bytes, position_records = source.w, source.row_bytes, count_superblocks(n)
        for first in range(0, n, UNPACK_COLUMNS):
            end, out = min(first + UNPACK_COLUMNS, n), panel + first // 256 * record
            for i in range(rows):
                if not scales_in_layout:
                    scales = unpacked + scales_at + i * SCALES_STRIDE
                    write_scales(
                        w + min(i, source.valid - 1) * row_bytes, first, end, scales, scales + mins_at - scales_at
                    )
                row_address = w + i * row_bytes + first // 256 * superblock_bytes
                for line in range(row_address, row_address + (end - first) // 32 * superblock_bytes // 8, 64):
                    prefetch_l1(line)
            ahead = w + rows * row_bytes + rows * superblock_bytes * (first // 256) // EARLY_PREFETCH_SHARE
            pack_codes(source, first, end, unpacked, out, position_records, ahead)
            groups = (end - first) // group
            if not scales_in_layout:
                pack_scales(unpacked + scales_at, groups, out + 32 * rows, position_records)
            if not scales_in_layout and has_mins:
                pack_scales(unpacked + mins_at, groups, out + 32 * rows + 4 * rows * (32 // group), position_records)

    return unpack
