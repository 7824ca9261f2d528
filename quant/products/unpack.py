"""Rows of weights unpacked into a panel: R rows in the register tile's own order (`quant.products.tile`).

Where codes are bits of some bytes in their order, the bytes of all rows are transposed first, where they lie, and taken
apart then: there are less of them. Otherwise a stretch of each row is written down as plain codes, and these are
transposed; likewise scales and mins.
"""

from typing import Any

from numba import float32, int64, uint8

from quant.codes.words import Runs, Words
from quant.jit.cpu import target
from quant.jit.vectors import inline, load, prefetch, prefetch_first, splat, store, u8x32, u8x64
from quant.products.activations import number_of, slot, superblocks_of
from quant.products.layout import CODES_STEP, PLACES, SCALES_STEP, STRETCH
from quant.products.tile import Tile
from quant.products.transpose import fields_word, halves_word, multiples_word, transpose_word

# While a panel is unpacked, one part of so many of the rows behind it is asked for; the rest, while it is multiplied.
EARLY = 2

# --- rows written down --------------------------------------------------------------------------------------------


def write_codes_word(words: Words, zero: int) -> Any:
    """The word write_codes(row, first, end, codes): those of columns first .. end, moved to have that zero."""
    codes64, codes32, superblock_bytes = words.codes64, words.codes32, words.superblock_bytes
    moved = uint8(zero - words.zero)

    @inline
    def superblocks(row: int, first: int, end: int, codes: int) -> None:
        for block in range(first // 256, end // 256):
            at, place = row + block * superblock_bytes, codes + 256 * block - first
            for j in range(4):
                store(place + 64 * j, codes64(at, j) + splat(u8x64, moved))

    @inline
    def with_rest(row: int, first: int, end: int, codes: int) -> None:
        superblocks(row, first, end, codes)
        for k in range(end // 256 * 8, end // 32):
            store(codes + 32 * k - first, codes32(row, k) + splat(u8x32, moved))

    return superblocks if codes32 is None else with_rest


def write_scales_word(words: Words, zero: int) -> Any:
    """The word write_scales(row, first, end, scales, mins): those of columns first .. end; no mins with a zero."""
    scales_of, mins_of, scale_of, least_of = words.scales, words.mins, words.scale, words.least
    superblock_bytes, groups, group = words.superblock_bytes, words.groups, words.group

    @inline
    def superblocks(row: int, first: int, end: int, scales: int, mins: int) -> None:
        for block in range(first // 256, end // 256):
            at, number = row + block * superblock_bytes, block - first // 256
            store(scales + 4 * groups * number, scales_of(at))
            if not zero:
                store(mins + 4 * groups * number, mins_of(at))

    @inline
    def with_rest(row: int, first: int, end: int, scales: int, mins: int) -> None:
        superblocks(row, first, end, scales, mins)
        for g in range(end // 256 * groups, end // group):
            store(scales + 4 * (g - first // group), scale_of(row, g))
            if not zero:
                store(mins + 4 * (g - first // group), least_of(row, g))

    return superblocks if scale_of is None else with_rest


# --- panels -------------------------------------------------------------------------------------------------------


def codes_word(rows: int) -> Any:
    """The word put_codes(source, step, place): 32 bytes of each of R rows, `step` bytes apart, D by D."""
    transpose = transpose_word(rows)

    @inline
    def put_fours(source: int, step: int, place: int) -> None:
        transpose(source, step, place, 8 * rows, 4 * rows)

    @inline
    def put_eights(source: int, step: int, place: int) -> None:
        for i in range(rows):
            for k in range(4):
                store(place + 8 * (rows * k + i), load(int64, source + i * step + 8 * k))

    return {4: put_fours, 8: put_eights}[target().depth]


def scales_word(shape: Tile) -> Any:
    """The word put_scales(source, count, panel, room): the scales of `count` groups of all rows, or the mins, into
    records, whose places are `room` records apart; `panel` is where the first of them belongs.
    """
    rows, parts, record = shape.rows, shape.parts, shape.panel_record
    transpose = transpose_word(rows)

    @inline
    def put_scales(source: int, count: int, panel: int, room: int) -> None:
        apart = record * room
        pair_step, single_step = (2 * apart, apart) if parts == 1 else (apart, 4 * rows)
        whole = count // (PLACES * parts) * (PLACES * parts)
        for group in range(0, whole, 8):
            place = panel + record * number_of(group // parts, room)
            transpose(source + 4 * group, SCALES_STEP, place, pair_step, single_step)
        for group in range(whole, count):
            place = panel + record * number_of(slot(group // parts, count // parts), room) + 4 * rows * (group % parts)
            for i in range(rows):
                store(place + 4 * i, load(float32, source + i * SCALES_STEP + 4 * group))

    return put_scales


@inline
def ask(ahead: int, nbytes: int, number: int) -> None:
    """Part `number`, of so many bytes, of what lies ahead is asked for."""
    for line in range(ahead + nbytes * number, ahead + nbytes * (number + 1), 64):
        prefetch(line)


def put_codes_word(words: Words, shape: Tile) -> Any:
    """The word put_all_codes(w, row_bytes, valid, first, end, notes, place, room, ahead): the codes of columns
    first .. end of rows of weights, into records whose places are `room` records apart. What lies ahead, of the same
    size over EARLY, is asked for meanwhile."""
    rows, record, superblock_bytes = shape.rows, shape.panel_record, words.superblock_bytes
    write_codes, put_codes = write_codes_word(words, shape.zero), codes_word(rows)

    @inline
    def put_all_codes(
        w: int, row_bytes: int, valid: int, first: int, end: int, notes: int, place: int, room: int, ahead: int
    ) -> None:
        blocks = (end - first) // 32
        for i in range(rows):
            write_codes(w + min(i, valid - 1) * row_bytes, first, end, notes + i * CODES_STEP)
            ask(ahead, blocks * superblock_bytes // 8 // EARLY, i)
        for number in range(blocks):
            put_codes(notes + 32 * number, CODES_STEP, place + record * number_of(slot(number, blocks), room))

    return put_all_codes


@inline
def no_multiples(source: int, step: int, place: int, apart: int) -> None:
    """Put nothing."""


def put_runs_word(words: Words, runs: Runs, shape: Tile) -> Any:
    """The same of codes that are transposed where they lie, and of the scales and mins that lie beside them. Where rows
    lack, those that there are, and the last one again, are copied first."""
    rows, record, superblock_bytes, halves = shape.rows, shape.panel_record, words.superblock_bytes, runs.halves
    multiples = len(words.multiples)
    put_multiples = multiples_word(words.multiples, shape.parts, rows) if multiples else no_multiples
    put_fields, put_halves = fields_word(runs, rows, shape.zero - words.zero), halves_word(max(1, halves), rows)
    of_superblock, run_step, groups = 256 // runs.columns, runs.step, runs.columns // 32

    @inline
    def put_all_runs(
        w: int, row_bytes: int, valid: int, first: int, end: int, notes: int, place: int, room: int, ahead: int
    ) -> None:
        blocks, source, step = (end - first) // 32, w + first // 256 * superblock_bytes, row_bytes
        if valid < rows:
            for i in range(rows):
                for byte in range(blocks * superblock_bytes // 8):
                    store(notes + i * CODES_STEP + byte, load(uint8, source + min(i, valid - 1) * row_bytes + byte))
            source, step = notes, CODES_STEP
        for run in range(blocks // groups):
            at = source + run // of_superblock * superblock_bytes + run % of_superblock * run_step
            there = place + record * number_of(slot(groups * run, blocks), room)
            put_fields(at, step, there, record * room)
            ask(ahead, rows * superblock_bytes // of_superblock // EARLY, run)
            if halves:
                put_halves(at, step, there + 32 * rows)
        if multiples:
            for block in range(blocks // 8):
                there = place + record * block + 32 * rows
                put_multiples(source + block * superblock_bytes, step, there, record * room)

    return put_all_runs


def unpack_word(words: Words, shape: Tile) -> Any:
    """The word unpack(w, row_bytes, valid, n, notes, panel): rows of weights into a panel. The beginning of the rows
    behind those is asked for.

    Where there are fewer than R valid rows, the last one stands for those that lack.
    """
    rows, record, zero, group = shape.rows, shape.panel_record, shape.zero, shape.group
    write_scales, put_scales = write_scales_word(words, zero), scales_word(shape)
    runs = words.runs if target().depth == 4 else None
    put_codes = put_runs_word(words, runs, shape) if runs else put_codes_word(words, shape)
    with_scales = runs is not None and runs.halves + len(words.multiples) > 0
    scales_at, superblock_bytes = rows * CODES_STEP, words.superblock_bytes
    mins_at = scales_at + rows * SCALES_STEP

    @inline
    def unpack(w: int, row_bytes: int, valid: int, n: int, notes: int, panel: int) -> None:
        room = superblocks_of(n)
        for first in range(0, n, STRETCH):
            end, place = min(first + STRETCH, n), panel + first // 256 * record
            for i in range(rows):
                if not with_scales:
                    scales = notes + scales_at + i * SCALES_STEP
                    write_scales(w + min(i, valid - 1) * row_bytes, first, end, scales, scales + mins_at - scales_at)
                here = w + i * row_bytes + first // 256 * superblock_bytes
                for line in range(here, here + (end - first) // 32 * superblock_bytes // 8, 64):
                    prefetch_first(line)
            ahead = w + rows * row_bytes + rows * superblock_bytes * (first // 256) // EARLY
            put_codes(w, row_bytes, valid, first, end, notes, place, room, ahead)
            groups = (end - first) // group
            if not with_scales:
                put_scales(notes + scales_at, groups, place + 32 * rows, room)
            if not with_scales and not zero:
                put_scales(notes + mins_at, groups, place + 32 * rows + 4 * rows * (32 // group), room)

    return unpack
