"""How each instruction set does what LLVM has no general word for: the one file that knows instruction sets.

These are the fused multiplication and addition, half precision, the integer dot product, the lookup of bytes in a small
table, and the pause of a spin loop.
An intrinsic that the CPU lacks would make LLVM abort the process, so the choice is made here, by `quant.cpu.target()`,
before any code is emitted. Everything else is written in vectors of a fixed length (`quant.vectors`), which LLVM cuts
to the registers that the CPU has. A new instruction set is a row in `quant.cpu.TARGETS` and its dot product here.
"""

from collections.abc import Sequence

from llvmlite import ir

from quant.cpu import target

I32, I64 = ir.IntType(32), ir.IntType(64)


def call_llvm(builder: ir.IRBuilder, name: str, result: ir.Type, args: Sequence[ir.Value]) -> ir.Value:
    """Call the LLVM intrinsic of that full name."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, args)


def suffix(kind: ir.Type) -> str:
    """How LLVM's overloaded intrinsics spell a type: v16f32."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{suffix(kind.element)}"
    return {"half": "f16", "float": "f32", "double": "f64"}.get(str(kind), str(kind))


def constant(kind: ir.VectorType, value: float) -> ir.Constant:
    """The same number in every lane."""
    return ir.Constant(kind, [value] * kind.count)


def emit_fma(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """x * y + z, with one rounding where the CPU has an instruction for it."""
    if target().fused:
        return call_llvm(b, f"llvm.fma.{suffix(x.type)}", x.type, [x, y, z])
    return b.fadd(b.fmul(x, y), z)


def emit_narrow_half(b: ir.IRBuilder, value: ir.Value, kind: ir.Type) -> ir.Value:
    """Single to half precision, to the nearest even; in integer arithmetic where the CPU has no instruction for it.

    A normal half is a rounding shift of the bits; a subnormal one is what an addition of 0.5 leaves in the low bits.
    """
    if target().isa != "generic":
        return b.fptrunc(value, kind)
    vector = isinstance(kind, ir.VectorType)
    ints = ir.VectorType(I32, kind.count) if vector else I32
    shorts = ir.VectorType(ir.IntType(16), kind.count) if vector else ir.IntType(16)

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


def emit_widen_half(b: ir.IRBuilder, value: ir.Value, kind: ir.Type) -> ir.Value:
    """Half to single precision, exact; in integer arithmetic where the CPU has no instruction for it.

    The exponent is moved by a multiplication with 2^112, which is exact and makes subnormals right as well;
    infinities and NaNs then get their full exponent back.
    """
    if target().isa != "generic":
        return b.fpext(value, kind)
    vector = isinstance(kind, ir.VectorType)
    ints = ir.VectorType(I32, kind.count) if vector else I32
    shorts = ir.VectorType(ir.IntType(16), kind.count) if vector else ir.IntType(16)

    def number(n: float, of: ir.Type = ints) -> ir.Constant:
        return constant(of, n) if vector else ir.Constant(of, n)

    bits = b.zext(b.bitcast(value, shorts), ints)
    magnitude = b.shl(b.and_(bits, number(0x7FFF)), number(13))
    scaled = b.bitcast(b.fmul(b.bitcast(magnitude, kind), number(2.0**112, kind)), ints)
    special = b.icmp_unsigned(">=", magnitude, number(0x7C00 << 13))
    full = b.select(special, b.or_(magnitude, number(0x7F800000)), scaled)
    sign = b.shl(b.and_(bits, number(0x8000)), number(16))
    return b.bitcast(b.or_(full, sign), kind)


def emit_dot4(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value, bits: int) -> ir.Value:
    """acc[i] += sum of codes[4i+j] * x[4i+j] for j in 0..3: i32xN, u8x4N below 2**bits, i8x4N; exact on every CPU."""
    native = {"avx512vnni": 16, "avx2": 8}.get(target().isa)
    if native is None:
        return dot4_generic(b, acc, codes, x)
    lanes_ = acc.type.count
    if lanes_ > native:
        half = lanes_ // 2
        parts = [
            emit_dot4(
                b,
                cut(b, acc, k * half, half),
                cut(b, codes, k * half * 4, half * 4),
                cut(b, x, k * half * 4, half * 4),
                bits,
            )
            for k in range(2)
        ]
        return glue(b, *parts)
    return {"avx512vnni": dot4_vnni, "avx2": dot4_avx2}[target().isa](b, acc, codes, x, bits)


def dot4_vnni(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value, bits: int) -> ir.Value:
    """vpdpbusd: the whole of it in one instruction."""
    name = f"llvm.x86.avx512.vpdpbusd.{acc.type.count * 32}"
    return call_llvm(b, name, acc.type, [acc, codes, x])


def dot4_avx2(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value, bits: int) -> ir.Value:
    """vpmaddubsw sums pairs into 16 bits and saturates: codes of 8 bits go in as two halves of 7 and 1 bits."""
    if acc.type.count != 8:
        return dot4_generic(b, acc, codes, x)
    i16x16 = ir.VectorType(ir.IntType(16), 16)
    ones = constant(i16x16, 1)

    def pairs(c: ir.Value) -> ir.Value:
        sums = call_llvm(b, "llvm.x86.avx2.pmadd.ub.sw", i16x16, [c, x])
        return call_llvm(b, "llvm.x86.avx2.pmadd.wd", acc.type, [sums, ones])

    if bits < 8:
        return b.add(acc, pairs(codes))
    low = b.and_(codes, constant(codes.type, 0x7F))
    high = b.and_(codes, constant(codes.type, 0x80))
    return b.add(acc, b.add(pairs(low), pairs(high)))


def dot4_generic(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value) -> ir.Value:
    """Four strided products, in plain vector operations."""
    for j in range(4):
        every = ir.Constant(ir.VectorType(I32, acc.type.count), list(range(j, codes.type.count, 4)))
        c = b.zext(b.shuffle_vector(codes, codes, every), acc.type)
        acc = b.add(acc, b.mul(c, b.sext(b.shuffle_vector(x, x, every), acc.type)))
    return acc


BYTE_SHUFFLES = {16: "llvm.x86.ssse3.pshuf.b.128", 32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}


def emit_lookup16(b: ir.IRBuilder, table: Sequence[int], index: ir.Value) -> ir.Value:
    """table[i] for each byte i of a vector, all below 16; the table has 16 bytes, the vector 16, 32 or 64."""
    count, arm = index.type.count, on_arm(b)
    native = 16 if arm else {"avx512vnni": 64, "avx512": 64, "avx2": 32}.get(target().isa)
    if native is None:
        return lookup16_generic(b, table, index)
    if count > native:
        half = count // 2
        return glue(b, *(emit_lookup16(b, table, cut(b, index, k * half, half)) for k in range(2)))
    lookup = "llvm.aarch64.neon.tbl1.v16i8" if arm else BYTE_SHUFFLES[count]
    return call_llvm(b, lookup, index.type, [ir.Constant(index.type, [*table] * (count // 16)), index])


def lookup16_generic(b: ir.IRBuilder, table: Sequence[int], index: ir.Value) -> ir.Value:
    """A knockout over the bits of the index: each halves the values that are left."""
    values: list[ir.Value] = [constant(index.type, value) for value in table]
    for bit in (1, 2, 4, 8):
        is_set = b.icmp_unsigned("!=", b.and_(index, constant(index.type, bit)), constant(index.type, 0))
        values = [b.select(is_set, odd, even) for even, odd in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def cut(b: ir.IRBuilder, v: ir.Value, start: int, count: int) -> ir.Value:
    """Some neighbouring lanes."""
    return b.shuffle_vector(v, v, ir.Constant(ir.VectorType(I32, count), list(range(start, start + count))))


def glue(b: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
    """Two vectors as one."""
    return b.shuffle_vector(
        low, high, ir.Constant(ir.VectorType(I32, 2 * low.type.count), list(range(2 * low.type.count)))
    )


def on_arm(b: ir.IRBuilder) -> bool:
    """Whether the code is for a 64-bit ARM CPU."""
    triple = str(b.module.triple)
    return "aarch64" in triple or "arm64" in triple


def emit_pause(b: ir.IRBuilder) -> ir.Value:
    """Tell the core that this is a spin loop, if it has a word for that."""
    if "x86" in str(b.module.triple):
        return call_llvm(b, "llvm.x86.sse2.pause", ir.VoidType(), [])
    if on_arm(b):
        return call_llvm(b, "llvm.aarch64.hint", ir.VoidType(), [I32(1)])
    return ir.Constant(I32, 0)


def emit_ticks(b: ir.IRBuilder) -> ir.Value:
    """A clock that a program may read, and that ticks alike on all cores: rdtsc, or aarch64's virtual count."""
    triple = str(b.module.triple)
    if any(name in triple for name in ("x86", "aarch64", "arm64")):
        return call_llvm(b, "llvm.readcyclecounter", I64, [])
    return I64(0)
