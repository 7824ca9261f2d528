"""Rows of weights unpacked into a panel: R rows in the register tile's own order (`quant.products.tile`).

A stretch of each row is written down as plain codes, scales and mins; then the rows are transposed, in registers. Codes
that are nibbles are transposed first, where they lie, four columns of a row at a time: there are half as many bytes.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import float32, int64, types, uint8

from quant.codes.words import Nibbles, Words
from quant.jit.cpu import target
from quant.jit.emit import I16, I32, I64, constant, emit_load, joined
from quant.jit.simd import emit_lookup16, emit_widen_half
from quant.jit.vectors import (
    Vector,
    inline,
    intrinsic,
    load,
    prefetch,
    prefetch_first,
    splat,
    store,
    u8x32,
    u8x64,
    word,
)
from quant.products.activations import number_of, slot, superblocks_of
from quant.products.layout import CODES_STEP, PLACES, SCALES_STEP, STRETCH
from quant.products.tile import Tile

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


# --- rows transposed ----------------------------------------------------------------------------------------------


def emit_four(b: ir.IRBuilder, rows: int, source: ir.Value, step: ir.Value) -> list[ir.Value]:
    """Four numbers of 32 bits of R rows, `step` bytes apart, as four vectors of R.

    Those of rows i, i + 4, i + 8, ... are loaded as the parts of one vector; interleaving four such vectors, part by
    part, first by single numbers and then by pairs, leaves the rows in their order.
    """
    parts, kind = rows // 4, ir.VectorType(I32, rows)

    def in_each_part(pattern: Sequence[int]) -> ir.Constant:
        """Lanes of two vectors, the second's from 4 on, in every part of four."""
        picks = [4 * part + pick % 4 + rows * (pick // 4) for part in range(parts) for pick in pattern]
        return ir.Constant(kind, picks)

    def strided(first: int) -> ir.Value:
        """Four numbers of every fourth row."""
        places = (b.add(source, b.mul(step, I64(row))) for row in range(first, rows, 4))
        return joined(b, [emit_load(b, ir.VectorType(I32, 4), place) for place in places])

    singles = [in_each_part([0, 4, 1, 5]), in_each_part([2, 6, 3, 7])]
    pairs = [in_each_part([0, 1, 4, 5]), in_each_part([2, 3, 6, 7])]
    v0, v1, v2, v3 = map(strided, range(4))
    firsts, seconds = ([b.shuffle_vector(v, w, mask) for mask in singles] for v, w in ((v0, v1), (v2, v3)))
    return [b.shuffle_vector(v, w, mask) for v, w in zip(firsts, seconds, strict=True) for mask in pairs]


def emit_put(b: ir.IRBuilder, vector: ir.Value, at: ir.Value) -> None:
    """Store a vector at any address."""
    b.store(vector, b.inttoptr(at, vector.type.as_pointer()), align=4)


def transpose_word(rows: int) -> Any:
    """The word transpose(source, step, place, pair_step, single_step): eight numbers of 32 bits of R rows, `step` bytes
    apart, become eight vectors of R: vector i at pair_step * (i // 2) + single_step * (i % 2)."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        source, step, place, pair_step, single_step = args
        vectors = (vector for first in (0, 4) for vector in emit_four(b, rows, b.add(source, I64(4 * first)), step))
        for i, vector in enumerate(vectors):
            emit_put(b, vector, b.add(place, b.add(b.mul(pair_step, I64(i // 2)), b.mul(single_step, I64(i % 2)))))
        return place

    @intrinsic
    def transpose(typingctx: Any, source: Any, step: Any, place: Any, pair_step: Any, single_step: Any) -> Any:
        return word(types.void, [types.int64] * 5, emit)

    return transpose


def nibbles_word(nibbles: Nibbles, rows: int, moved: int) -> Any:
    """The word put_nibbles(source, step, low, high): the codes of a run of R rows, `step` bytes apart, moved; the low
    ones four columns after the other at `low`, then the high ones at `high`."""
    kind = Vector(types.uint8, 4 * rows).llvm
    table = [(code + moved) % 256 for code in nibbles.table or range(16)]

    def codes(b: ir.IRBuilder, below_16: ir.Value) -> ir.Value:
        if nibbles.table:
            return emit_lookup16(b, table, below_16)
        return b.add(below_16, constant(kind, moved)) if moved else below_16

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        source, step, low, high = args
        for first in range(0, nibbles.size, 16):
            for i, vector in enumerate(emit_four(b, rows, b.add(source, I64(first)), step)):
                both, at = b.bitcast(vector, kind), I64(rows * (first + 4 * i))
                emit_put(b, codes(b, b.and_(both, constant(kind, 15))), b.add(low, at))
                emit_put(b, codes(b, b.lshr(both, constant(kind, 4))), b.add(high, at))
        return source

    @intrinsic
    def put_nibbles(typingctx: Any, source: Any, step: Any, low: Any, high: Any) -> Any:
        return word(types.void, [types.int64] * 4, emit)

    return put_nibbles


def halves_word(count: int, rows: int) -> Any:
    """The word put_halves(source, step, place): one half or two neighbours of R rows, `step` bytes apart, as floats, a
    row after the other."""
    bits, whole = 16 * count, ir.VectorType(ir.IntType(16 * count), rows)
    shorts, halves = ir.VectorType(I16, rows), ir.VectorType(ir.HalfType(), rows)
    floats = Vector(types.float32, rows).llvm

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        source, step, place = args
        numbers = ir.Constant(whole, ir.Undefined)
        for row in range(rows):
            number = emit_load(b, whole.element, b.add(source, b.mul(step, I64(row))))
            numbers = b.insert_element(numbers, number, I32(row))
        for shift in range(0, bits, 16):
            short = b.trunc(b.lshr(numbers, constant(whole, shift)), shorts) if count > 1 else numbers
            emit_put(b, emit_widen_half(b, b.bitcast(short, halves), floats), b.add(place, I64(rows * shift // 4)))
        return source

    @intrinsic
    def put_halves(typingctx: Any, source: Any, step: Any, place: Any) -> Any:
        return word(types.void, [types.int64] * 3, emit)

    return put_halves


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


# --- panels -------------------------------------------------------------------------------------------------------


def put_codes_word(words: Words, shape: Tile) -> Any:
    """The word put_all_codes(w, row_bytes, valid, first, end, notes, place, room): the codes of columns first .. end of
    rows of weights, into records whose places are `room` records apart."""
    rows, record = shape.rows, shape.panel_record
    write_codes, put_codes = write_codes_word(words, shape.zero), codes_word(rows)

    @inline
    def put_all_codes(
        w: int, row_bytes: int, valid: int, first: int, end: int, notes: int, place: int, room: int
    ) -> None:
        blocks = (end - first) // 32
        for i in range(rows):
            write_codes(w + min(i, valid - 1) * row_bytes, first, end, notes + i * CODES_STEP)
        for number in range(blocks):
            put_codes(notes + 32 * number, CODES_STEP, place + record * number_of(slot(number, blocks), room))

    return put_all_codes


def put_nibbles_word(words: Words, nibbles: Nibbles, shape: Tile) -> Any:
    """The same of codes that are nibbles, and of the scales and mins that lie beside them. Where rows lack, those that
    there are, and the last one again, are copied first."""
    rows, record, superblock_bytes, halves = shape.rows, shape.panel_record, words.superblock_bytes, nibbles.halves
    put_nibbles, put_halves = nibbles_word(nibbles, rows, shape.zero - words.zero), halves_word(max(1, halves), rows)
    runs, run_first, run_step, groups = 128 // nibbles.size, nibbles.first, nibbles.step, nibbles.size // 16

    @inline
    def put_all_nibbles(
        w: int, row_bytes: int, valid: int, first: int, end: int, notes: int, place: int, room: int
    ) -> None:
        blocks, source, step = (end - first) // 32, w + first // 256 * superblock_bytes, row_bytes
        if valid < rows:
            for i in range(rows):
                for byte in range(blocks * superblock_bytes // 8):
                    store(notes + i * CODES_STEP + byte, load(uint8, source + min(i, valid - 1) * row_bytes + byte))
            source, step = notes, CODES_STEP
        for run in range(blocks // groups):
            at = source + run // runs * superblock_bytes + run_first + run % runs * run_step
            low = place + record * number_of(slot(groups * run, blocks), room)
            high = low + 16 * rows if groups == 1 else place + record * number_of(slot(2 * run + 1, blocks), room)
            put_nibbles(at, step, low, high)
            if halves:
                put_halves(at - 2 * halves, step, low + 32 * rows)

    return put_all_nibbles


def unpack_word(words: Words, shape: Tile) -> Any:
    """The word unpack(w, row_bytes, valid, n, notes, panel): rows of weights into a panel.

    Where there are fewer than R valid rows, the last one stands for those that lack.
    """
    rows, record, zero, group = shape.rows, shape.panel_record, shape.zero, shape.group
    write_scales, put_scales = write_scales_word(words, zero), scales_word(shape)
    nibbles = words.nibbles if target().depth == 4 else None
    put_codes = put_nibbles_word(words, nibbles, shape) if nibbles else put_codes_word(words, shape)
    with_scales = nibbles is not None and nibbles.halves > 0
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
                ahead = w + (i + rows) * row_bytes + first // 256 * superblock_bytes
                for line in range(ahead, ahead + (end - first) // 32 * superblock_bytes // 8, 64):
                    prefetch(line)
                    prefetch_first(line - rows * row_bytes)
            put_codes(w, row_bytes, valid, first, end, notes, place, room)
            groups = (end - first) // group
            if not with_scales:
                put_scales(notes + scales_at, groups, place + 32 * rows, room)
            if not with_scales and not zero:
                put_scales(notes + mins_at, groups, place + 32 * rows + 4 * rows * (32 // group), room)

    return unpack
