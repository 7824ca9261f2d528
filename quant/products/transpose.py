"""Rows transposed in registers, four columns at a time: what a panel (`quant.products.unpack`) is made of.

Instructions that work on bytes do not mind which row or column a byte belongs to. So what takes the codes of a row
apart takes apart four columns of many rows just as well, and less has to be transposed before than after.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

from llvmlite import ir
from numba import types

from quant.codes.words import Field, Multiples, Runs, Spread
from quant.jit.emit import I16, I32, I64, constant, emit_load, joined
from quant.jit.simd import emit_lookup16, emit_widen_half
from quant.jit.vectors import Vector, intrinsic, word


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


def emit_field(b: ir.IRBuilder, field: Field, bytes_: ir.Value) -> ir.Value:
    """The bits of a field of each byte, where they belong."""
    if field.bits == 8:
        return bytes_
    up, mask = field.to - field.shift, ((1 << field.bits) - 1) << field.to
    words = b.bitcast(bytes_, ir.VectorType(I32, bytes_.type.count // 4))
    moved = b.shl(words, constant(words.type, up)) if up > 0 else b.lshr(words, constant(words.type, -up))
    return b.bitcast(b.and_(moved, constant(words.type, 0x01010101 * mask)), bytes_.type)


def emit_spread(b: ir.IRBuilder, spread: Spread, numbers: ir.Value, i: int) -> ir.Value:
    """Of each row's number, bits 4i .. 4i + 3 of the sixteen, in a byte each, where they belong."""
    kind, byte, first = numbers.type, (spread.shift + 4 * i) // 8, (spread.shift + 4 * i) % 8
    there = ir.Constant(ir.VectorType(I32, kind.count), [lane // 4 * 4 + byte for lane in range(kind.count)])
    bits = ir.Constant(kind, [1 << (first + lane % 4) for lane in range(kind.count)])
    is_set = b.icmp_unsigned("!=", b.and_(b.shuffle_vector(numbers, numbers, there), bits), constant(kind, 0))
    return b.select(is_set, constant(kind, 1 << spread.to), constant(kind, 0))


def fields_word(runs: Runs, rows: int, moved: int) -> Any:
    """The word put_fields(source, step, place, apart): the codes of a run of R rows, `step` bytes apart, moved: those
    of four columns after the other, and of every 32 columns `apart` bytes behind those of the 32 before."""
    kind, moved = Vector(types.uint8, 4 * rows).llvm, moved + runs.zero
    table = [(code + moved) % 256 for code in runs.table]

    def emit_codes(b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
        if table:
            return emit_lookup16(b, table, bits)
        return b.add(bits, constant(kind, moved % 256)) if moved % 256 else bits

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        source, step, place, apart = args
        fours: dict[int, list[ir.Value]] = {}

        def emit_bits(field: Field | Spread, i: int) -> ir.Value:
            """What a field adds to the codes of four columns."""
            if field.at not in fours:
                vectors = emit_four(b, rows, b.add(source, I64(field.at)), step)
                fours[field.at] = [b.bitcast(vector, kind) for vector in vectors]
            if isinstance(field, Spread):
                return emit_spread(b, field, fours[field.at][0], i)
            return emit_field(b, field, fours[field.at][i])

        for number, fields in sorted(enumerate(runs.sixteens), key=lambda each: [f.at for f in reversed(each[1])]):
            there = b.add(place, b.add(b.mul(apart, I64(number // 2)), I64(16 * rows * (number % 2))))
            for i in range(4):
                bits = reduce(b.or_, [emit_bits(field, i) for field in fields])
                emit_put(b, emit_codes(b, bits), b.add(there, I64(4 * rows * i)))
        return source

    @intrinsic
    def put_fields(typingctx: Any, source: Any, step: Any, place: Any, apart: Any) -> Any:
        return word(types.void, [types.int64] * 4, emit)

    return put_fields


def emit_halves(b: ir.IRBuilder, rows: int, source: ir.Value, step: ir.Value, count: int) -> list[ir.Value]:
    """One half or two neighbours of R rows, `step` bytes apart, as vectors of floats."""
    bits, whole = 16 * count, ir.VectorType(ir.IntType(16 * count), rows)
    shorts, halves = ir.VectorType(I16, rows), ir.VectorType(ir.HalfType(), rows)
    numbers, found = ir.Constant(whole, ir.Undefined), []
    for row in range(rows):
        number = emit_load(b, whole.element, b.add(source, b.mul(step, I64(row))))
        numbers = b.insert_element(numbers, number, I32(row))
    for shift in range(0, bits, 16):
        short = b.trunc(b.lshr(numbers, constant(whole, shift)), shorts) if count > 1 else numbers
        found.append(emit_widen_half(b, b.bitcast(short, halves), Vector(types.float32, rows).llvm))
    return found


def halves_word(count: int, rows: int) -> Any:
    """The word put_halves(source, step, place): one half or two neighbours of R rows, `step` bytes apart, as floats, a
    row after the other."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        source, step, place = args
        for i, floats in enumerate(emit_halves(b, rows, source, step, count)):
            emit_put(b, floats, b.add(place, I64(4 * rows * i)))
        return source

    @intrinsic
    def put_halves(typingctx: Any, source: Any, step: Any, place: Any) -> Any:
        return word(types.void, [types.int64] * 3, emit)

    return put_halves


def multiples_word(multiples: Sequence[Multiples], parts: int, rows: int) -> Any:
    """The word put_multiples(source, step, place, apart): the scales of a superblock of R rows, `step` bytes apart, and
    the mins: of every 32 columns those of their `parts` groups, `apart` bytes behind those of the 32 before."""
    bytes_ = Vector(types.uint8, 4 * rows).llvm
    ints, floats = Vector(types.int32, rows).llvm, Vector(types.float32, rows).llvm
    lowest = min(field.at for kind in multiples for fields in kind.fours for field in fields) // 16 * 16
    halves_at = min(kind.of for kind in multiples)

    def emit_floats(b: ir.IRBuilder, four: ir.Value, i: int, signed: bool) -> ir.Value:
        """Number i of each row's four bytes."""
        shifted = b.shl(four, constant(ints, 24 - 8 * i)) if i < 3 else four
        moved = (b.ashr if signed else b.lshr)(shifted, constant(ints, 24))
        return b.sitofp(moved, floats)

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        source, step, place, apart = args
        fours = [b.bitcast(four, bytes_) for four in emit_four(b, rows, b.add(source, I64(lowest)), step)]
        halves = emit_halves(b, rows, b.add(source, I64(halves_at)), step, len(multiples))
        for which, kind in enumerate(multiples):
            factor = halves[(kind.of - halves_at) // 2]
            factor = b.fneg(factor) if kind.negative else factor
            for number, fields in enumerate(kind.fours):
                four = reduce(b.or_, [emit_field(b, field, fours[(field.at - lowest) // 4]) for field in fields])
                four = b.bitcast(four, ints)
                for i in range(4):
                    group = 4 * number + i
                    there = b.add(b.mul(apart, I64(group // parts)), I64(4 * rows * (which * parts + group % parts)))
                    emit_put(b, b.fmul(emit_floats(b, four, i, kind.signed), factor), b.add(place, there))
        return source

    @intrinsic
    def put_multiples(typingctx: Any, source: Any, step: Any, place: Any, apart: Any) -> Any:
        return word(types.void, [types.int64] * 4, emit)

    return put_multiples
