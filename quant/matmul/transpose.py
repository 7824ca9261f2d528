"""Transposition of rows in registers, four columns at a time, to build panels (`quant.matmul.unpack`).

Byte instructions do not care which row or column a byte belongs to. The instructions that unpack the codes of a row can
therefore unpack four columns of many rows as well, and transposing the packed bytes moves less data than transposing
the unpacked codes.
"""

from collections.abc import Sequence
from functools import cache, reduce
from typing import Any

from llvmlite import ir
from numba import types

from quant.jit.emit import I16, I32, I64, concat_all, constant, emit_load
from quant.jit.simd import emit_f16_to_f32, emit_lookup16
from quant.jit.vectors import Vector, intrinsic, lowering
from quant.packing.format_spec import BitField, BitPlaneField, CodeLayout, ScaleLayout


def emit_transpose4(b: ir.IRBuilder, rows: int, source: ir.Value, step: ir.Value) -> list[ir.Value]:
    """Load four 32-bit numbers of R rows, `step` bytes apart, and return them as four vectors of R lanes.

    Rows i, i + 4, i + 8, ... are loaded as the quarters of one vector. Interleaving four such vectors within quarters,
    first by single numbers and then by pairs, puts the rows in order.
    """
    quarters, kind = rows // 4, ir.VectorType(I32, rows)

    def in_each_part(pattern: Sequence[int]) -> ir.Constant:
        """Return a mask that applies a pattern of two vectors' lanes, the second's from 4 on, in every quarter."""
        picks = [4 * quarter + pick % 4 + rows * (pick // 4) for quarter in range(quarters) for pick in pattern]
        return ir.Constant(kind, picks)

    def strided(first: int) -> ir.Value:
        """Load four numbers of every fourth row."""
        addresses = (b.add(source, b.mul(step, I64(row))) for row in range(first, rows, 4))
        return concat_all(b, [emit_load(b, ir.VectorType(I32, 4), out) for out in addresses])

    singles = [in_each_part([0, 4, 1, 5]), in_each_part([2, 6, 3, 7])]
    pairs = [in_each_part([0, 1, 4, 5]), in_each_part([2, 3, 6, 7])]
    v0, v1, v2, v3 = map(strided, range(4))
    firsts, seconds = ([b.shuffle_vector(v, w, mask) for mask in singles] for v, w in ((v0, v1), (v2, v3)))
    return [b.shuffle_vector(v, w, mask) for v, w in zip(firsts, seconds, strict=True) for mask in pairs]


def emit_store(b: ir.IRBuilder, vector: ir.Value, at: ir.Value) -> None:
    """Store a vector at any address."""
    b.store(vector, b.inttoptr(at, vector.type.as_pointer()), align=4)


@cache
def make_transpose(rows: int) -> Any:
    """Return the inlined function transpose(source, step, out, pair_step, single_step).

    It turns eight 32-bit numbers of R rows, `step` bytes apart, into eight vectors of R lanes. Vector i is stored at
    pair_step * (i // 2) + single_step * (i % 2).
    """

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        source, step, out, pair_step, single_step = args
        vectors = (
            vector for first in (0, 4) for vector in emit_transpose4(b, rows, b.add(source, I64(4 * first)), step)
        )
        for i, vector in enumerate(vectors):
            emit_store(b, vector, b.add(out, b.add(b.mul(pair_step, I64(i // 2)), b.mul(single_step, I64(i % 2)))))
        return out

    @intrinsic
    def transpose(typingctx: Any, source: Any, step: Any, out: Any, pair_step: Any, single_step: Any) -> Any:
        return lowering(types.void, [types.int64] * 5, emit)

    return transpose


def emit_bit_field(b: ir.IRBuilder, field: BitField, bytes_: ir.Value) -> ir.Value:
    """Return a field's bits of each byte, moved to their position in the code."""
    if field.bits == 8:
        return bytes_
    up, mask = field.target_bit - field.shift, ((1 << field.bits) - 1) << field.target_bit
    words = b.bitcast(bytes_, ir.VectorType(I32, bytes_.type.count // 4))
    moved = b.shl(words, constant(words.type, up)) if up > 0 else b.lshr(words, constant(words.type, -up))
    return b.bitcast(b.and_(moved, constant(words.type, 0x01010101 * mask)), bytes_.type)


def emit_bit_plane(b: ir.IRBuilder, spread: BitPlaneField, numbers: ir.Value, i: int) -> ir.Value:
    """Return bits 4i .. 4i + 3 of the sixteen, for each row's number, one per byte, moved to their position in the
    code.
    """
    kind, byte, first = numbers.type, (spread.shift + 4 * i) // 8, (spread.shift + 4 * i) % 8
    byte_lanes = ir.Constant(ir.VectorType(I32, kind.count), [lane // 4 * 4 + byte for lane in range(kind.count)])
    bits = ir.Constant(kind, [1 << (first + lane % 4) for lane in range(kind.count)])
    is_set = b.icmp_unsigned("!=", b.and_(b.shuffle_vector(numbers, numbers, byte_lanes), bits), constant(kind, 0))
    return b.select(is_set, constant(kind, 1 << spread.target_bit), constant(kind, 0))


@cache
def make_store_codes(layout: CodeLayout, rows: int, shift: int) -> Any:
    """Return the inlined function store_codes(source, step, out, group_stride): unpack and store the codes of a run
    of R rows.

    Rows are `step` bytes apart. Four columns are stored after the other; each 32 columns begin `group_stride` bytes
    after the previous 32. `shift` is added to all codes.
    """
    kind, shift = Vector(types.uint8, 4 * rows).llvm, shift + layout.code_offset
    table = [(code + shift) % 256 for code in layout.table]

    def emit_codes(b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
        if table:
            return emit_lookup16(b, table, bits)
        return b.add(bits, constant(kind, shift % 256)) if shift % 256 else bits

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        source, step, out, group_stride = args
        columns: dict[int, list[ir.Value]] = {}

        def emit_bits(field: BitField | BitPlaneField, i: int) -> ir.Value:
            """Return a field's contribution to the codes of four columns."""
            if field.offset not in columns:
                vectors = emit_transpose4(b, rows, b.add(source, I64(field.offset)), step)
                columns[field.offset] = [b.bitcast(vector, kind) for vector in vectors]
            if isinstance(field, BitPlaneField):
                return emit_bit_plane(b, field, columns[field.offset][0], i)
            return emit_bit_field(b, field, columns[field.offset][i])

        for number, fields in sorted(
            enumerate(layout.columns16), key=lambda each: [f.offset for f in reversed(each[1])]
        ):
            address = b.add(out, b.add(b.mul(group_stride, I64(number // 2)), I64(16 * rows * (number % 2))))
            for i in range(4):
                bits = reduce(b.or_, [emit_bits(field, i) for field in fields])
                emit_store(b, emit_codes(b, bits), b.add(address, I64(4 * rows * i)))
        return source

    @intrinsic
    def store_codes(typingctx: Any, source: Any, step: Any, out: Any, group_stride: Any) -> Any:
        return lowering(types.void, [types.int64] * 4, emit)

    return store_codes


def emit_load_halves(b: ir.IRBuilder, rows: int, source: ir.Value, step: ir.Value, count: int) -> list[ir.Value]:
    """Load one half precision number or two adjacent ones from R rows, `step` bytes apart, as float vectors."""
    bits, whole = 16 * count, ir.VectorType(ir.IntType(16 * count), rows)
    shorts, halves = ir.VectorType(I16, rows), ir.VectorType(ir.HalfType(), rows)
    numbers, found = ir.Constant(whole, ir.Undefined), []
    for row in range(rows):
        number = emit_load(b, whole.element, b.add(source, b.mul(step, I64(row))))
        numbers = b.insert_element(numbers, number, I32(row))
    for shift in range(0, bits, 16):
        short = b.trunc(b.lshr(numbers, constant(whole, shift)), shorts) if count > 1 else numbers
        found.append(emit_f16_to_f32(b, b.bitcast(short, halves), Vector(types.float32, rows).llvm))
    return found


@cache
def make_store_halves(count: int, rows: int) -> Any:
    """Return the inlined function store_halves(source, step, out): store one or two adjacent halves of R rows as
    floats.

    Rows are `step` bytes apart. The first halves of all rows are stored before the second ones.
    """

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        source, step, out = args
        for i, floats in enumerate(emit_load_halves(b, rows, source, step, count)):
            emit_store(b, floats, b.add(out, I64(4 * rows * i)))
        return source

    @intrinsic
    def store_halves(typingctx: Any, source: Any, step: Any, out: Any) -> Any:
        return lowering(types.void, [types.int64] * 3, emit)

    return store_halves


@cache
def make_store_scales(layouts: tuple[ScaleLayout, ...], groups_per_record: int, rows: int) -> Any:
    """Return the inlined function store_scales(source, step, out, group_stride): store the scales and mins of a
    superblock of R rows.

    Rows are `step` bytes apart. Each 32 columns have `groups_per_record` groups; their scales are stored `group_stride`
    bytes after those of the previous 32.
    """
    bytes_ = Vector(types.uint8, 4 * rows).llvm
    ints, floats = Vector(types.int32, rows).llvm, Vector(types.float32, rows).llvm
    lowest = min(field.offset for kind in layouts for fields in kind.quads for field in fields) // 16 * 16
    halves_at = min(kind.half_offset for kind in layouts)

    def emit_floats(b: ir.IRBuilder, four: ir.Value, i: int, signed: bool) -> ir.Value:
        """Return number i of each row's four bytes as float."""
        shifted = b.shl(four, constant(ints, 24 - 8 * i)) if i < 3 else four
        moved = (b.ashr if signed else b.lshr)(shifted, constant(ints, 24))
        return b.sitofp(moved, floats)

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        source, step, out, group_stride = args
        columns = [b.bitcast(four, bytes_) for four in emit_transpose4(b, rows, b.add(source, I64(lowest)), step)]
        halves = emit_load_halves(b, rows, b.add(source, I64(halves_at)), step, len(layouts))
        for which, kind in enumerate(layouts):
            factor = halves[(kind.half_offset - halves_at) // 2]
            factor = b.fneg(factor) if kind.negated else factor
            for number, fields in enumerate(kind.quads):
                four = reduce(
                    b.or_, [emit_bit_field(b, field, columns[(field.offset - lowest) // 4]) for field in fields]
                )
                four = b.bitcast(four, ints)
                for i in range(4):
                    group = 4 * number + i
                    address = b.add(
                        b.mul(group_stride, I64(group // groups_per_record)),
                        I64(4 * rows * (which * groups_per_record + group % groups_per_record)),
                    )
                    emit_store(b, b.fmul(emit_floats(b, four, i, kind.signed), factor), b.add(out, address))
        return source

    @intrinsic
    def store_scales(typingctx: Any, source: Any, step: Any, out: Any, group_stride: Any) -> Any:
        return lowering(types.void, [types.int64] * 4, emit)

    return store_scales
