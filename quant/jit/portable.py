"""Operations that some instruction sets lack, in portable vector operations. `quant.jit.simd` selects them."""

from collections.abc import Sequence
from functools import reduce

from llvmlite import ir

from quant.jit.emit import I8, I16, I32, I64, constant, emit_load, slice_lanes


def f32_to_f16_by_integers(b: ir.IRBuilder, value: ir.Value, kind: ir.Type) -> ir.Value:
    """Convert single to half precision, rounded to nearest even.

    For a normal number, this is a rounding shift of the bits. For a subnormal number, adding 0.5 leaves the result in
    the low bits.
    """
    vector = isinstance(kind, ir.VectorType)
    ints = ir.VectorType(I32, kind.count) if vector else I32
    shorts = ir.VectorType(I16, kind.count) if vector else I16

    def number(n: float, of: ir.Type = ints) -> ir.Constant:
        return constant(of, n) if vector else ir.Constant(of, n)

    bits = b.bitcast(value, ints)
    magnitude = b.and_(bits, number(0x7FFFFFFF))
    odd = b.and_(b.lshr(magnitude, number(13)), number(1))
    rounded = b.add(b.add(magnitude, odd), number(0xFFF - (112 << 23)))
    normal = b.lshr(rounded, number(13))
    shifted = b.fadd(b.bitcast(magnitude, value.type), number(0.5, value.type))
    subnormal = b.sub(b.bitcast(shifted, ints), number(0x3F000000))
    special = b.select(b.icmp_unsigned(">", magnitude, number(0x7F800000)), number(0x7E00), number(0x7C00))
    finite = b.select(b.icmp_unsigned("<", magnitude, number(0x38800000)), subnormal, normal)
    halved = b.select(b.icmp_unsigned(">=", magnitude, number(0x47800000)), special, finite)
    sign = b.and_(b.lshr(bits, number(16)), number(0x8000))
    return b.bitcast(b.trunc(b.or_(halved, sign), shorts), kind)


def f16_to_f32_by_integers(b: ir.IRBuilder, value: ir.Value, kind: ir.Type) -> ir.Value:
    """Convert half to single precision, exactly.

    Multiplying by 2^112 adjusts the exponent; this is exact and also handles subnormal numbers. Infinities and NaNs
    then get their full exponent back.
    """
    vector = isinstance(kind, ir.VectorType)
    ints = ir.VectorType(I32, kind.count) if vector else I32
    shorts = ir.VectorType(I16, kind.count) if vector else I16

    def number(n: float, of: ir.Type = ints) -> ir.Constant:
        return constant(of, n) if vector else ir.Constant(of, n)

    bits = b.zext(b.bitcast(value, shorts), ints)
    magnitude = b.shl(b.and_(bits, number(0x7FFF)), number(13))
    scaled = b.bitcast(b.fmul(b.bitcast(magnitude, kind), number(2.0**112, kind)), ints)
    special = b.icmp_unsigned(">=", magnitude, number(0x7C00 << 13))
    full = b.select(special, b.or_(magnitude, number(0x7F800000)), scaled)
    sign = b.shl(b.and_(bits, number(0x8000)), number(16))
    return b.bitcast(b.or_(full, sign), kind)


def lookup16_by_bits(b: ir.IRBuilder, table: Sequence[int], index: ir.Value) -> ir.Value:
    """Return table[i] for each byte i of a vector, bit by bit: each bit of the index halves the candidates."""
    values: list[ir.Value] = [constant(index.type, value) for value in table]
    for bit in (1, 2, 4, 8):
        is_set = b.icmp_unsigned("!=", b.and_(index, constant(index.type, bit)), constant(index.type, 0))
        values = [b.select(is_set, odd, even) for even, odd in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def dot4_by_strides(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value, bits: int) -> ir.Value:
    """Compute the dot product as four strided products in portable vector operations."""
    for j in range(4):
        every = ir.Constant(ir.VectorType(I32, acc.type.count), list(range(j, codes.type.count, 4)))
        c = b.zext(b.shuffle_vector(codes, codes, every), acc.type)
        acc = b.add(acc, b.mul(c, b.sext(b.shuffle_vector(x, x, every), acc.type)))
    return acc


def gather_by_shuffle(b: ir.IRBuilder, address: ir.Value, offsets: Sequence[int], readable_bytes: int) -> ir.Value:
    """Load the two bytes at each offset by shuffling whole registers, each merged into the result of the previous
    ones.
    """
    register, picks = ir.VectorType(I16, 32), ir.VectorType(I32, 32)
    in_register = [min(offset // 64 * 64, readable_bytes - 64) for offset in offsets]
    found = ir.Constant(register, ir.Undefined)
    for start in sorted(set(in_register)):
        loaded = emit_load(b, register, b.add(address, I64(start)))
        chosen = [
            32 + (offset - start) // 2 if at == start else lane
            for lane, (offset, at) in enumerate(zip(offsets, in_register, strict=True))
        ]
        chosen += range(len(offsets), 32)
        found = b.shuffle_vector(found, loaded, ir.Constant(picks, chosen))
    return b.bitcast(slice_lanes(b, found, 0, len(offsets)), ir.VectorType(I8, 2 * len(offsets)))


def gather_by_words(b: ir.IRBuilder, address: ir.Value, offsets: Sequence[int], size: int) -> ir.Value:
    """Load small pieces into integers, two or more, which then become a vector: NEON would need the vector units for
    each piece that it inserts into a vector.
    """
    kind, word = ir.IntType(8 * size), I64 if size * len(offsets) > 8 else I32
    in_word = word.width // kind.width
    words = ir.Constant(ir.VectorType(word, len(offsets) // in_word), ir.Undefined)
    for number in range(len(offsets) // in_word):
        pieces = offsets[in_word * number : in_word * (number + 1)]
        loads = [b.zext(emit_load(b, kind, b.add(address, I64(offset))), word) for offset in pieces]
        moved = [b.shl(piece, word(8 * size * i)) for i, piece in enumerate(loads)]
        words = b.insert_element(words, reduce(b.or_, moved), I32(number))
    return b.bitcast(words, ir.VectorType(I8, size * len(offsets)))


def bytes_of_bits(b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """Return eight copies of each byte of an integer, the lowest byte first."""
    lanes = bits.type.width
    bytes_, copies = b.bitcast(bits, ir.VectorType(I8, lanes // 8)), [lane // 8 for lane in range(lanes)]
    return b.shuffle_vector(bytes_, bytes_, ir.Constant(ir.VectorType(I32, lanes), copies))


def mask_from_bits_by_lanes(b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """Return a boolean for each bit of an integer, the lowest first: each lane tests one bit of its byte. Without
    instructions for masks, LLVM would move the bits one by one.
    """
    bytes_ = bytes_of_bits(b, bits)
    tested = b.and_(bytes_, ir.Constant(bytes_.type, [1 << lane % 8 for lane in range(bytes_.type.count)]))
    return b.icmp_unsigned("!=", tested, constant(bytes_.type, 0))
