"""How each instruction set does what LLVM has no general word for: the one file that knows instruction sets.

These are the fused multiplication and addition, half precision, the lookup of bytes in a small table, the pause of a
spin loop, and products of bytes: the dot product of four (`emit_dot4`) and the block in a register tile (`emit_block`).
An intrinsic that the CPU lacks would make LLVM abort the process, so the choice is made here, by
`quant.jit.cpu.target()`, before any code is emitted. Everything else is written in vectors of a fixed length
(`quant.jit.vectors`), which LLVM cuts to the registers that the CPU has. A new instruction set is a row in
`quant.jit.cpu.KNOWN_BY` and its products here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from quant.jit.cpu import target
from quant.jit.emit import (
    I8,
    I16,
    I32,
    I64,
    BFloatType,
    bytes_of,
    call_llvm,
    constant,
    cut,
    emit_load,
    emit_splat,
    every_second,
    glue,
    halves,
    joined,
    lane_everywhere,
    suffix,
)

# --- floats -------------------------------------------------------------------------------------------------------


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


def emit_widen_half(b: ir.IRBuilder, value: ir.Value, kind: ir.Type) -> ir.Value:
    """Half to single precision, exact; in integer arithmetic where the CPU has no instruction for it.

    The exponent is moved by a multiplication with 2^112, which is exact and makes subnormals right as well;
    infinities and NaNs then get their full exponent back.
    """
    if target().isa != "generic":
        return b.fpext(value, kind)
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


BFLOATS = ir.VectorType(BFloatType(), 32)


def emit_dot2(b: ir.IRBuilder, x: ir.Value, y: ir.Value, sums: ir.Value) -> ir.Value:
    """vdpbf16ps: sums[i] + x[2i] * y[2i] + x[2i+1] * y[2i+1] of bfloat16, only where `target().bfloats`.

    Rounded to the nearest even after each of the two products; subnormal numbers count as 0.
    """
    return call_llvm(b, "llvm.x86.avx512bf16.dpbf16ps.512", sums.type, [sums, x, y])


# --- memory -------------------------------------------------------------------------------------------------------


def emit_pieces(b: ir.IRBuilder, address: ir.Value, places: Sequence[int], size: int, room: int) -> ir.Value:
    """The bytes of pieces of memory: `size` of them at each place from an address on, where `room` bytes may be read.

    With registers of 64 bytes they are picked out of what covers them all, in pairs; elsewhere they are loaded one by
    one.
    """
    if target().isa in ("avx512vnni", "avx512") and room >= 64 and all(place % 2 == 0 for place in (*places, size)):
        return picked(b, address, [place + byte for place in places for byte in range(0, size, 2)], room)
    kind = ir.VectorType(I8, size) if size > 4 else ir.IntType(8 * size)
    loads = [emit_load(b, kind, b.add(address, I64(place))) for place in places]
    if size > 4:
        return joined(b, loads)
    glued = ir.Constant(ir.VectorType(kind, len(loads)), ir.Undefined)
    for lane, loaded in enumerate(loads):
        glued = b.insert_element(glued, loaded, I32(lane))
    return b.bitcast(glued, ir.VectorType(I8, size * len(loads)))


def picked(b: ir.IRBuilder, address: ir.Value, places: Sequence[int], room: int) -> ir.Value:
    """The two bytes at each place, out of registers full of memory; each register takes over what others gave."""
    register, picks = ir.VectorType(I16, 32), ir.VectorType(I32, 32)
    in_register = [min(place // 64 * 64, room - 64) for place in places]
    found = ir.Constant(register, ir.Undefined)
    for start in sorted(set(in_register)):
        loaded = emit_load(b, register, b.add(address, I64(start)))
        chosen = [
            32 + (place - start) // 2 if at == start else lane
            for lane, (place, at) in enumerate(zip(places, in_register, strict=True))
        ]
        chosen += range(len(places), 32)
        found = b.shuffle_vector(found, loaded, ir.Constant(picks, chosen))
    return b.bitcast(cut(b, found, 0, len(places)), ir.VectorType(I8, 2 * len(places)))


# --- the dot product of four --------------------------------------------------------------------------------------

X86 = ("avx512vnni", "avx512", "vnni256", "avx2")

# How many sums of 32 bits an instruction makes.
NATIVE = {"avx512vnni": 16, "avx512": 16, "vnni256": 8, "avx2": 8, "neon-i8mm": 4, "neon-dotprod": 4, "neon": 4}


def emit_dot4(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value, bits: int) -> ir.Value:
    """acc[i] += sum of codes[4i+j] * x[4i+j] for j in 0..3: i32xN, u8x4N below 2**bits, i8x4N; exact on every CPU."""
    if acc.type.count > NATIVE.get(target().isa, 16):
        sides = zip(halves(b, acc), halves(b, codes), halves(b, x), strict=True)
        return glue(b, *(emit_dot4(b, *side, bits) for side in sides))
    return DOT4.get(target().isa, dot4_generic)(b, acc, codes, x, bits)


def dot4_vnni(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value, bits: int) -> ir.Value:
    """vpdpbusd: the whole of it in one instruction; in the VEX or the EVEX encoding, as the CPU has it."""
    return call_llvm(b, f"llvm.x86.avx512.vpdpbusd.{acc.type.count * 32}", acc.type, [acc, codes, x])


def dot4_usdot(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value, bits: int) -> ir.Value:
    """usdot: just as well, on NEON with i8mm."""
    return call_llvm(b, "llvm.aarch64.neon.usdot.v4i32.v16i8", acc.type, [acc, codes, x])


def dot4_sdot(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value, bits: int) -> ir.Value:
    """sdot takes signed bytes only: from codes of 8 bits 128 is taken by flipping the top bit, and added as 2 * 64."""
    if bits < 8:
        return sdot(b, acc, codes, x)
    acc = sdot(b, acc, b.xor(codes, constant(codes.type, 0x80)), x)
    for _ in range(2):
        acc = sdot(b, acc, constant(codes.type, 64), x)
    return acc


def sdot(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value) -> ir.Value:
    """The instruction."""
    return call_llvm(b, "llvm.aarch64.neon.sdot.v4i32.v16i8", acc.type, [acc, codes, x])


def dot4_pairs(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value, bits: int) -> ir.Value:
    """By sums of pairs in 16 bits."""
    for digit, weight in digits(b, codes, bits):
        acc = b.add(acc, sum_of_pairs(b, products_of_pairs(b, digit, x), weight))
    return acc


def dot4_generic(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value, bits: int) -> ir.Value:
    """Four strided products, in plain vector operations."""
    for j in range(4):
        every = ir.Constant(ir.VectorType(I32, acc.type.count), list(range(j, codes.type.count, 4)))
        c = b.zext(b.shuffle_vector(codes, codes, every), acc.type)
        acc = b.add(acc, b.mul(c, b.sext(b.shuffle_vector(x, x, every), acc.type)))
    return acc


DOT4 = {
    "avx512vnni": dot4_vnni,
    "vnni256": dot4_vnni,
    "avx512": dot4_pairs,
    "avx2": dot4_pairs,
    "neon-i8mm": dot4_usdot,
    "neon-dotprod": dot4_sdot,
}


# --- sums of pairs: x86 without VNNI ------------------------------------------------------------------------------


def digits(b: ir.IRBuilder, codes: ir.Value, bits: int) -> list[tuple[ir.Value, int]]:
    """Codes as numbers whose products in pairs fit into 16 bits, each with its weight: codes of 8 bits are two."""
    if bits < 8:
        return [(codes, 1)]
    four, low = constant(codes.type, 4), constant(codes.type, 15)
    return [(b.and_(codes, low), 1), (b.lshr(codes, four), 16)]


def sixteens(codes: ir.Value) -> ir.VectorType:
    """A sum of 16 bits for two bytes."""
    return ir.VectorType(I16, codes.type.count // 2)


def products_of_pairs(b: ir.IRBuilder, codes: ir.Value, x: ir.Value) -> ir.Value:
    """vpmaddubsw: codes[2i] * x[2i] + codes[2i+1] * x[2i+1], which must fit into 16 bits."""
    name = {32: "llvm.x86.avx2.pmadd.ub.sw", 64: "llvm.x86.avx512.pmaddubs.w.512"}[codes.type.count]
    return call_llvm(b, name, sixteens(codes), [codes, x])


def sum_of_pairs(b: ir.IRBuilder, sums: ir.Value, weight: int) -> ir.Value:
    """vpmaddwd: neighbours added into 32 bits, times a small weight."""
    name = {16: "llvm.x86.avx2.pmadd.wd", 32: "llvm.x86.avx512.pmaddw.d.512"}[sums.type.count]
    return call_llvm(b, name, ir.VectorType(I32, sums.type.count // 2), [sums, constant(sums.type, weight)])


PACKS = {16: "llvm.x86.avx512.packssdw.512", 8: "llvm.x86.avx2.packssdw"}


def emit_pair_sums(b: ir.IRBuilder, v: ir.Value, w: ir.Value, largest: int) -> ir.Value:
    """The sums of every two neighbours among every four lanes of v and w: v's two, then w's.

    Lanes have 32 bits, and none is larger than `largest`: x86 adds small ones up in two instructions.
    """
    if v.type.count > NATIVE.get(target().isa, 16):
        sides = zip(halves(b, v), halves(b, w), strict=True)
        return glue(b, *(emit_pair_sums(b, *side, largest) for side in sides))
    if largest < 1 << 15 and v.type.count in PACKS and target().isa in X86:
        return sum_of_pairs(b, call_llvm(b, PACKS[v.type.count], ir.VectorType(I16, 2 * v.type.count), [v, w]), 1)
    quarters = range(0, v.type.count, 4)

    def picked(lanes: Sequence[int]) -> ir.Value:
        places = [quarter + lane + start for quarter in quarters for start in (0, v.type.count) for lane in lanes]
        return b.shuffle_vector(v, w, ir.Constant(ir.VectorType(I32, v.type.count), places))

    return b.add(picked([0, 2]), picked([1, 3]))


def pieces(b: ir.IRBuilder, sums: ir.Value) -> list[ir.Value]:
    """Sums, cut to what an instruction makes."""
    lanes = min(sums.type.count, NATIVE.get(target().isa, 16))
    return [cut(b, sums, start, lanes) for start in range(0, sums.type.count, lanes)]


# --- the block of products in a register tile ---------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """codes[steps][rows][depth] below 2**bits, by the first `tokens` of x[steps][width][depth], from -peak to peak."""

    rows: int
    tokens: int
    width: int
    steps: int
    bits: int
    peak: int


def emit_block(b: ir.IRBuilder, sums: Sequence[ir.Value], codes: ir.Value, x: ir.Value, block: Block) -> list[ir.Value]:
    """sums[token][row] plus the products over all steps and their columns; exact on every CPU.

    `codes` and `x` are addresses. A step is `target().depth` columns: what one instruction adds up.
    """
    return BLOCKS.get(target().isa, block_of_fours)(b, sums, codes, x, block)


def block_takes_away(bits: int) -> int:
    """What a block takes from each code: 128 where products are of signed bytes only, and codes have 8 bits."""
    return 128 if bits == 8 and target().isa == "neon-dotprod" else 0


def block_of_fours(
    b: ir.IRBuilder, sums: Sequence[ir.Value], codes: ir.Value, x: ir.Value, block: Block
) -> list[ir.Value]:
    """By dot products of four, with four activations of a token in front of every row."""
    acc = [pieces(b, s) for s in sums]
    kind = acc[0][0].type
    for k in range(block.steps):
        rows = [emit_load(b, bytes_of(kind), b.add(codes, I64(at))) for at in places(block, k, kind.count)]
        for t in range(block.tokens):
            four = emit_load(b, I32, b.add(x, I64(4 * (block.width * k + t))))
            everywhere = b.bitcast(emit_splat(b, kind, four), bytes_of(kind))
            acc[t] = [emit_dot4(b, s, row, everywhere, block.bits) for s, row in zip(acc[t], rows, strict=True)]
    return [joined(b, parts) for parts in acc]


def places(block: Block, k: int, lanes: int) -> range:
    """Where the codes of step k lie, `lanes` rows after the other."""
    return range(4 * block.rows * k, 4 * block.rows * (k + 1), 4 * lanes)


def block_of_pairs(
    b: ir.IRBuilder, sums: Sequence[ir.Value], codes: ir.Value, x: ir.Value, block: Block
) -> list[ir.Value]:
    """By sums of pairs, which are added up in 16 bits for as many steps as they are sure to fit there."""
    acc = [pieces(b, s) for s in sums]
    kind = acc[0][0].type
    largest = 15 if block.bits == 8 else 2**block.bits - 1
    run = min(block.steps, 32767 // (2 * largest * block.peak))
    for first in range(0, block.steps, run):
        pairs: dict[tuple[int, int, int], ir.Value] = {}
        for k in range(first, min(first + run, block.steps)):
            rows = [
                digits(b, emit_load(b, bytes_of(kind), b.add(codes, I64(at))), block.bits)
                for at in places(block, k, kind.count)
            ]
            for t in range(block.tokens):
                four = emit_load(b, I32, b.add(x, I64(4 * (block.width * k + t))))
                everywhere = b.bitcast(emit_splat(b, kind, four), bytes_of(kind))
                for part, row in enumerate(rows):
                    for digit, weight in row:
                        products = products_of_pairs(b, digit, everywhere)
                        there = pairs.get((t, part, weight))
                        pairs[t, part, weight] = b.add(there, products) if there else products
        for (t, part, weight), total in pairs.items():
            acc[t][part] = b.add(acc[t][part], sum_of_pairs(b, total, weight))
    return [joined(b, parts) for parts in acc]


def block_sdot(b: ir.IRBuilder, sums: Sequence[ir.Value], codes: ir.Value, x: ir.Value, block: Block) -> list[ir.Value]:
    """By sdot, which takes its four activations from any lane of a register: a register has those of four tokens."""
    acc = [pieces(b, s) for s in sums]
    kind = acc[0][0].type
    flip = constant(bytes_of(kind), 0x80 if block_takes_away(block.bits) else 0)
    for k in range(block.steps):
        rows = [b.xor(emit_load(b, flip.type, b.add(codes, I64(at))), flip) for at in places(block, k, kind.count)]
        for t in range(block.tokens):
            if t % 4 == 0:
                four_tokens = emit_load(b, kind, b.add(x, I64(4 * (block.width * k + t))))
            everywhere = b.bitcast(lane_everywhere(b, four_tokens, t % 4), flip.type)
            acc[t] = [sdot(b, s, row, everywhere) for s, row in zip(acc[t], rows, strict=True)]
    return [joined(b, parts) for parts in acc]


def block_usmmla(
    b: ir.IRBuilder, sums: Sequence[ir.Value], codes: ir.Value, x: ir.Value, block: Block
) -> list[ir.Value]:
    """By usmmla: eight columns of two rows by eight columns of two tokens; it adds up r0 t0, r0 t1, r1 t0, r1 t1."""
    kind, row_pairs = ir.VectorType(I32, 4), range(block.rows // 2)
    acc = [[constant(kind, 0)] * len(row_pairs) for _ in range(block.tokens // 2)]
    for k in range(block.steps):
        codes_at, x_at = b.add(codes, I64(8 * block.rows * k)), b.add(x, I64(8 * block.width * k))
        rows = [emit_load(b, bytes_of(kind), b.add(codes_at, I64(16 * pair))) for pair in row_pairs]
        for pair, there in enumerate(acc):
            tokens = emit_load(b, bytes_of(kind), b.add(x_at, I64(16 * pair)))
            acc[pair] = [usmmla(b, s, row, tokens) for s, row in zip(there, rows, strict=True)]
    return [b.add(s, every_second(b, joined(b, acc[t // 2]), t % 2)) for t, s in enumerate(sums)]


def usmmla(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value) -> ir.Value:
    """The instruction."""
    return call_llvm(b, "llvm.aarch64.neon.usmmla.v4i32.v16i8", acc.type, [acc, codes, x])


BLOCKS = {
    "avx512": block_of_pairs,
    "avx2": block_of_pairs,
    "neon-dotprod": block_sdot,
    "neon-i8mm": block_usmmla,
}


# --- the rest -----------------------------------------------------------------------------------------------------

BYTE_SHUFFLES = {16: "llvm.x86.ssse3.pshuf.b.128", 32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}


def emit_lookup16(b: ir.IRBuilder, table: Sequence[int], index: ir.Value) -> ir.Value:
    """table[i] for each byte i of a vector, all below 16; the table has 16 bytes, the vector 16, 32 or 64."""
    count, arm = index.type.count, on_arm(b)
    if not arm and target().isa not in NATIVE:
        return lookup16_generic(b, table, index)
    if count > (16 if arm else 4 * NATIVE[target().isa]):
        return glue(b, *(emit_lookup16(b, table, side) for side in halves(b, index)))
    lookup = "llvm.aarch64.neon.tbl1.v16i8" if arm else BYTE_SHUFFLES[count]
    return call_llvm(b, lookup, index.type, [ir.Constant(index.type, [*table] * (count // 16)), index])


def lookup16_generic(b: ir.IRBuilder, table: Sequence[int], index: ir.Value) -> ir.Value:
    """A knockout over the bits of the index: each halves the values that are left."""
    values: list[ir.Value] = [constant(index.type, value) for value in table]
    for bit in (1, 2, 4, 8):
        is_set = b.icmp_unsigned("!=", b.and_(index, constant(index.type, bit)), constant(index.type, 0))
        values = [b.select(is_set, odd, even) for even, odd in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def emit_lookup256(b: ir.IRBuilder, table: Sequence[int], index: ir.Value) -> ir.Value:
    """table[i] for each of 64 bytes i, only where `target().looks_bytes_up`: vpermi2b looks seven bits up, and the
    eighth chooses."""
    kind = index.type
    quarters = [ir.Constant(kind, list(table[start : start + 64])) for start in range(0, 256, 64)]
    low, high = (
        call_llvm(b, "llvm.x86.avx512.vpermi2var.qi.512", kind, [first, index, second])
        for first, second in zip(quarters[::2], quarters[1::2], strict=True)
    )
    return b.select(b.icmp_signed("<", index, constant(kind, 0)), high, low)


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
