"""Operations that some instruction sets lack, in portable vector operations. `quant.jit.simd` selects them."""

from collections.abc import Sequence

from llvmlite import ir

from quant.jit.emit import I16, I32, constant


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
