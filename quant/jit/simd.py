"""Code for each instruction set, where LLVM has no portable operation. Only this module and `quant.jit.sme` depend on
instruction sets.

These operations are the fused multiply-add, half precision, byte lookup in a small table, the spin-wait hint, and
products of bytes: the dot product of four bytes (`emit_dot4`) and the block of a register tile (`emit_dot_block`).

An intrinsic that the CPU lacks would make LLVM abort the process. The choice is therefore made before code is emitted,
by `quant.jit.cpu.target()`. Everything else uses vectors of fixed length (`quant.jit.vectors`), which LLVM splits into
the CPU's registers. To support a new instruction set, add a row to `quant.jit.cpu.TARGETS` and its products here.
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
    broadcast_lane,
    byte_vector,
    call_intrinsic,
    concat_all,
    concat_lanes,
    constant,
    emit_load,
    emit_splat,
    intrinsic_suffix,
    slice_lanes,
    split_halves,
)
from quant.jit.portable import (
    bytes_of_bits,
    dot4_by_strides,
    f16_to_f32_by_integers,
    f32_to_f16_by_integers,
    gather_by_shuffle,
    gather_by_words,
    lookup16_by_bits,
    mask_from_bits_by_lanes,
)

# --- floats -------------------------------------------------------------------------------------------------------


def emit_fma(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """Return x * y + z, with a single rounding if the CPU has a fused multiply-add instruction."""
    if target().has_fma:
        return call_intrinsic(b, f"llvm.fma.{intrinsic_suffix(x.type)}", x.type, [x, y, z])
    return b.fadd(b.fmul(x, y), z)


def emit_f32_to_f16(b: ir.IRBuilder, value: ir.Value, kind: ir.Type) -> ir.Value:
    """Convert single to half precision, rounded to nearest even."""
    return b.fptrunc(value, kind) if target().isa != "generic" else f32_to_f16_by_integers(b, value, kind)


def emit_f16_to_f32(b: ir.IRBuilder, value: ir.Value, kind: ir.Type) -> ir.Value:
    """Convert half to single precision, exactly."""
    return b.fpext(value, kind) if target().isa != "generic" else f16_to_f32_by_integers(b, value, kind)


BF16X32 = ir.VectorType(BFloatType(), 32)


def emit_bf16_dot2(b: ir.IRBuilder, x: ir.Value, y: ir.Value, sums: ir.Value) -> ir.Value:
    """Emit vdpbf16ps: sums[i] + x[2i] * y[2i] + x[2i+1] * y[2i+1] of bfloat16. Requires `target().has_bf16_dot`.

    Each of the two products is rounded to nearest even; subnormal numbers count as 0.
    """
    return call_intrinsic(b, "llvm.x86.avx512bf16.dpbf16ps.512", sums.type, [sums, x, y])


# --- memory -------------------------------------------------------------------------------------------------------


def emit_gather_pieces(
    b: ir.IRBuilder, address: ir.Value, offsets: Sequence[int], size: int, readable_bytes: int
) -> ir.Value:
    """Load pieces of memory into one vector: `size` bytes at each of `offsets` from an address.

    `readable_bytes` is the number of bytes from the address on that may be read. CPUs with 64-byte registers load the
    whole range and shuffle; others load the pieces one by one.
    """
    even = all(offset % 2 == 0 for offset in (*offsets, size))
    if target().has_512_bit_vectors and even and readable_bytes >= 64:
        pairs = [offset + byte for offset in offsets for byte in range(0, size, 2)]
        return gather_by_shuffle(b, address, pairs, readable_bytes)
    if size <= 4 and target().has_signed_dot:
        return gather_by_words(b, address, offsets, size)
    kind = ir.VectorType(I8, size) if size > 4 else ir.IntType(8 * size)
    loads = [emit_load(b, kind, b.add(address, I64(offset))) for offset in offsets]
    if size > 4:
        return concat_all(b, loads)
    combined = ir.Constant(ir.VectorType(kind, len(loads)), ir.Undefined)
    for lane, loaded in enumerate(loads):
        combined = b.insert_element(combined, loaded, I32(lane))
    return b.bitcast(combined, ir.VectorType(I8, size * len(loads)))


# --- the dot product of four bytes --------------------------------------------------------------------------------

X86_ISAS = ("avx512vnni", "avx512", "vnni256", "avx2")

# The number of 32-bit sums that one dot product instruction computes.
NATIVE_DOT_LANES = {
    "avx512vnni": 16,
    "avx512": 16,
    "vnni256": 8,
    "avx2": 8,
    "neon-sme": 4,
    "neon-i8mm": 4,
    "neon-dotprod": 4,
    "neon": 4,
}


def emit_dot4(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value, bits: int) -> ir.Value:
    """Return acc[i] + the sum of codes[4i+j] * x[4i+j] for j in 0..3, exact on every CPU.

    The types are i32xN for `acc`, u8x4N with values below 2**bits for `codes`, and i8x4N for `x`.
    """
    if acc.type.count > NATIVE_DOT_LANES.get(target().isa, 16):
        sides = zip(split_halves(b, acc), split_halves(b, codes), split_halves(b, x), strict=True)
        return concat_lanes(b, *(emit_dot4(b, *side, bits) for side in sides))
    return DOT4.get(target().isa, dot4_by_strides)(b, acc, codes, x, bits)


def dot4_vnni(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value, bits: int) -> ir.Value:
    """Emit vpdpbusd, which computes the whole dot product, in the VEX or EVEX encoding that the CPU has."""
    return call_intrinsic(b, f"llvm.x86.avx512.vpdpbusd.{acc.type.count * 32}", acc.type, [acc, codes, x])


def dot4_usdot(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value, bits: int) -> ir.Value:
    """Emit usdot, which computes the whole dot product on NEON with i8mm."""
    return call_intrinsic(b, "llvm.aarch64.neon.usdot.v4i32.v16i8", acc.type, [acc, codes, x])


def dot4_sdot(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value, bits: int) -> ir.Value:
    """Emit sdot, which takes signed bytes only. From 8-bit codes 128 is subtracted by flipping the top bit, and added
    back as 2 * 64.
    """
    if bits < 8:
        return emit_sdot(b, acc, codes, x)
    acc = emit_sdot(b, acc, b.xor(codes, constant(codes.type, 0x80)), x)
    for _ in range(2):
        acc = emit_sdot(b, acc, constant(codes.type, 64), x)
    return acc


def emit_sdot(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value) -> ir.Value:
    """Emit sdot: acc[i] + the sum of codes[4i+j] * x[4i+j] for j in 0..3, for sixteen signed codes. Requires
    `target().has_signed_dot`.
    """
    return call_intrinsic(b, "llvm.aarch64.neon.sdot.v4i32.v16i8", acc.type, [acc, codes, x])


def dot4_pairs(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value, bits: int) -> ir.Value:
    """Compute the dot product from 16-bit sums of pairs."""
    for digit, weight in split_codes(b, codes, bits):
        acc = b.add(acc, pairwise_sum(b, pairwise_products(b, digit, x), weight))
    return acc


DOT4 = {
    "avx512vnni": dot4_vnni,
    "vnni256": dot4_vnni,
    "avx512": dot4_pairs,
    "avx2": dot4_pairs,
    "neon-sme": dot4_usdot,
    "neon-i8mm": dot4_usdot,
    "neon-dotprod": dot4_sdot,
}


# --- sums of pairs: x86 without VNNI ------------------------------------------------------------------------------


def split_codes(b: ir.IRBuilder, codes: ir.Value, bits: int) -> list[tuple[ir.Value, int]]:
    """Split codes into parts whose pairwise products fit into 16 bits, each with its weight: 8-bit codes give two
    nibbles.
    """
    if bits < 8:
        return [(codes, 1)]
    four, low = constant(codes.type, 4), constant(codes.type, 15)
    return [(b.and_(codes, low), 1), (b.lshr(codes, four), 16)]


def pair_sums_type(codes: ir.Value) -> ir.VectorType:
    """Return the vector type with one 16-bit sum for each two bytes."""
    return ir.VectorType(I16, codes.type.count // 2)


def pairwise_products(b: ir.IRBuilder, codes: ir.Value, x: ir.Value) -> ir.Value:
    """Emit vpmaddubsw: codes[2i] * x[2i] + codes[2i+1] * x[2i+1], which must fit into 16 bits."""
    name = {32: "llvm.x86.avx2.pmadd.ub.sw", 64: "llvm.x86.avx512.pmaddubs.w.512"}[codes.type.count]
    return call_intrinsic(b, name, pair_sums_type(codes), [codes, x])


def pairwise_sum(b: ir.IRBuilder, sums: ir.Value, weight: int) -> ir.Value:
    """Emit vpmaddwd: add neighbours into 32 bits, times a small weight."""
    name = {16: "llvm.x86.avx2.pmadd.wd", 32: "llvm.x86.avx512.pmaddw.d.512"}[sums.type.count]
    return call_intrinsic(b, name, ir.VectorType(I32, sums.type.count // 2), [sums, constant(sums.type, weight)])


PACK_INTRINSICS = {16: "llvm.x86.avx512.packssdw.512", 8: "llvm.x86.avx2.packssdw"}


def emit_pair_sums(b: ir.IRBuilder, v: ir.Value, w: ir.Value, largest: int) -> ir.Value:
    """Return the sums of neighbouring lanes. Of each four lanes, the result has the two sums of v, then the two of w.

    Lanes are 32-bit integers, none larger than `largest`. x86 adds small ones with two instructions.
    """
    if v.type.count > NATIVE_DOT_LANES.get(target().isa, 16):
        sides = zip(split_halves(b, v), split_halves(b, w), strict=True)
        return concat_lanes(b, *(emit_pair_sums(b, *side, largest) for side in sides))
    if largest < 1 << 15 and v.type.count in PACK_INTRINSICS and target().isa in X86_ISAS:
        return pairwise_sum(
            b, call_intrinsic(b, PACK_INTRINSICS[v.type.count], ir.VectorType(I16, 2 * v.type.count), [v, w]), 1
        )
    quarters = range(0, v.type.count, 4)

    def shuffled(lanes: Sequence[int]) -> ir.Value:
        indices = [quarter + lane + start for quarter in quarters for start in (0, v.type.count) for lane in lanes]
        return b.shuffle_vector(v, w, ir.Constant(ir.VectorType(I32, v.type.count), indices))

    return b.add(shuffled([0, 2]), shuffled([1, 3]))


def split_to_native(b: ir.IRBuilder, sums: ir.Value) -> list[ir.Value]:
    """Split sums into vectors of the native length."""
    lanes = min(sums.type.count, NATIVE_DOT_LANES.get(target().isa, 16))
    return [slice_lanes(b, sums, start, lanes) for start in range(0, sums.type.count, lanes)]


# --- the block of products in a register tile ---------------------------------------------------------------------


@dataclass(frozen=True)
class DotBlock:
    """The shape of a block of products: codes[steps][rows][depth] times the first `tokens` of x[steps][width][depth].

    Codes are below 2**bits; if `target().has_signed_panels`, they are signed bytes. Activations are from -peak to peak.
    """

    rows: int
    tokens: int
    width: int
    steps: int
    bits: int
    peak: int


def emit_dot_block(
    b: ir.IRBuilder, sums: Sequence[ir.Value], codes: ir.Value, x: ir.Value, block: DotBlock
) -> list[ir.Value]:
    """Return sums[token][row] plus the products over all steps, exact on every CPU.

    `codes` and `x` are addresses. A step has `target().depth` columns, which one instruction adds up. A vector has the
    sums of `target().tokens_per_vector` tokens, in turns for each row.
    """
    return DOT_BLOCKS.get(target().isa, dot_block_by_dot4)(b, sums, codes, x, block)


def dot_block_by_dot4(
    b: ir.IRBuilder, sums: Sequence[ir.Value], codes: ir.Value, x: ir.Value, block: DotBlock
) -> list[ir.Value]:
    """Compute a block with dot products of four: four activations of a token are broadcast to all rows."""
    acc = [split_to_native(b, s) for s in sums]
    kind = acc[0][0].type
    for k in range(block.steps):
        rows = [emit_load(b, byte_vector(kind), b.add(codes, I64(at))) for at in code_offsets(block, k, kind.count)]
        for t in range(block.tokens):
            four = emit_load(b, I32, b.add(x, I64(4 * (block.width * k + t))))
            everywhere = b.bitcast(emit_splat(b, kind, four), byte_vector(kind))
            acc[t] = [emit_dot4(b, s, row, everywhere, block.bits) for s, row in zip(acc[t], rows, strict=True)]
    return [concat_all(b, vectors) for vectors in acc]


def code_offsets(block: DotBlock, k: int, lanes: int) -> range:
    """Return the offsets of the codes of step k, for groups of `lanes` rows."""
    return range(4 * block.rows * k, 4 * block.rows * (k + 1), 4 * lanes)


def dot_block_by_pairs(
    b: ir.IRBuilder, sums: Sequence[ir.Value], codes: ir.Value, x: ir.Value, block: DotBlock
) -> list[ir.Value]:
    """Compute a block with 16-bit sums of pairs, which are accumulated over as many steps as cannot overflow."""
    acc = [split_to_native(b, s) for s in sums]
    kind = acc[0][0].type
    largest = 15 if block.bits == 8 else 2**block.bits - 1
    run = min(block.steps, 32767 // (2 * largest * block.peak))
    for first in range(0, block.steps, run):
        pairs: dict[tuple[int, int, int], ir.Value] = {}
        for k in range(first, min(first + run, block.steps)):
            rows = [
                split_codes(b, emit_load(b, byte_vector(kind), b.add(codes, I64(at))), block.bits)
                for at in code_offsets(block, k, kind.count)
            ]
            for t in range(block.tokens):
                four = emit_load(b, I32, b.add(x, I64(4 * (block.width * k + t))))
                everywhere = b.bitcast(emit_splat(b, kind, four), byte_vector(kind))
                for row_index, row in enumerate(rows):
                    for digit, weight in row:
                        products = pairwise_products(b, digit, everywhere)
                        previous = pairs.get((t, row_index, weight))
                        pairs[t, row_index, weight] = b.add(previous, products) if previous else products
        for (t, row_index, weight), total in pairs.items():
            acc[t][row_index] = b.add(acc[t][row_index], pairwise_sum(b, total, weight))
    return [concat_all(b, vectors) for vectors in acc]


def dot_block_by_sdot(
    b: ir.IRBuilder, sums: Sequence[ir.Value], codes: ir.Value, x: ir.Value, block: DotBlock
) -> list[ir.Value]:
    """Compute a block with sdot, which takes four activations from any lane of a register: a register holds four
    tokens.
    """
    acc = [split_to_native(b, s) for s in sums]
    kind = acc[0][0].type
    for k in range(block.steps):
        rows = [emit_load(b, byte_vector(kind), b.add(codes, I64(at))) for at in code_offsets(block, k, kind.count)]
        for t in range(block.tokens):
            if t % 4 == 0:
                four_tokens = emit_load(b, kind, b.add(x, I64(4 * (block.width * k + t))))
            everywhere = b.bitcast(broadcast_lane(b, four_tokens, t % 4), byte_vector(kind))
            acc[t] = [emit_sdot(b, s, row, everywhere) for s, row in zip(acc[t], rows, strict=True)]
    return [concat_all(b, vectors) for vectors in acc]


def dot_block_by_smmla(
    b: ir.IRBuilder, sums: Sequence[ir.Value], codes: ir.Value, x: ir.Value, block: DotBlock
) -> list[ir.Value]:
    """Compute a block with smmla: eight columns of two rows times eight columns of two tokens.

    The instruction's four sums are row 0 token 0, row 0 token 1, row 1 token 0, row 1 token 1. A vector of sums has
    those of two tokens.
    """
    acc = [split_to_native(b, s) for s in sums]
    kind = acc[0][0].type
    for k in range(block.steps):
        codes_at, x_at = b.add(codes, I64(8 * block.rows * k)), b.add(x, I64(8 * block.width * k))
        rows = [emit_load(b, byte_vector(kind), b.add(codes_at, I64(16 * pair))) for pair in range(block.rows // 2)]
        for pair, pair_sums in enumerate(acc):
            tokens = emit_load(b, byte_vector(kind), b.add(x_at, I64(16 * pair)))
            acc[pair] = [emit_smmla(b, s, row, tokens) for s, row in zip(pair_sums, rows, strict=True)]
    return [concat_all(b, vectors) for vectors in acc]


def emit_smmla(b: ir.IRBuilder, acc: ir.Value, codes: ir.Value, x: ir.Value) -> ir.Value:
    """Emit the smmla instruction."""
    return call_intrinsic(b, "llvm.aarch64.neon.smmla.v4i32.v16i8", acc.type, [acc, codes, x])


DOT_BLOCKS = {
    "avx512": dot_block_by_pairs,
    "avx2": dot_block_by_pairs,
    "neon-dotprod": dot_block_by_sdot,
    "neon-i8mm": dot_block_by_smmla,
}


# --- lookup, spin wait, clock -------------------------------------------------------------------------------------

BYTE_SHUFFLES = {16: "llvm.x86.ssse3.pshuf.b.128", 32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}


def emit_lookup16(b: ir.IRBuilder, table: Sequence[int], index: ir.Value) -> ir.Value:
    """Return table[i] for each byte i of a vector. The table has 16 bytes, the vector 16, 32 or 64 bytes below 16."""
    count, arm = index.type.count, is_arm64(b)
    if not arm and target().isa not in NATIVE_DOT_LANES:
        return lookup16_by_bits(b, table, index)
    if count > (16 if arm else 4 * NATIVE_DOT_LANES[target().isa]):
        return concat_lanes(b, *(emit_lookup16(b, table, side) for side in split_halves(b, index)))
    lookup = "llvm.aarch64.neon.tbl1.v16i8" if arm else BYTE_SHUFFLES[count]
    return call_intrinsic(b, lookup, index.type, [ir.Constant(index.type, [*table] * (count // 16)), index])


def emit_lookup256(b: ir.IRBuilder, table: Sequence[int], index: ir.Value) -> ir.Value:
    """Return table[i] for each of 64 bytes. Requires `target().has_byte_permute`.

    vpermi2b looks up seven bits of the index; the eighth bit selects between two results.
    """
    kind = index.type
    quarters = [ir.Constant(kind, list(table[start : start + 64])) for start in range(0, 256, 64)]
    low, high = (
        call_intrinsic(b, "llvm.x86.avx512.vpermi2var.qi.512", kind, [first, index, second])
        for first, second in zip(quarters[::2], quarters[1::2], strict=True)
    )
    return b.select(b.icmp_signed("<", index, constant(kind, 0)), high, low)


def emit_shift_insert(b: ir.IRBuilder, name: str, into: ir.Value, source: ir.Value, shift: int) -> ir.Value:
    """Emit sli or sri: shift bytes, and keep those bits of `into` that the shift would clear. Requires
    `target().has_shift_insert`.
    """
    if into.type.count > 16:
        sides = zip(split_halves(b, into), split_halves(b, source), strict=True)
        return concat_lanes(b, *(emit_shift_insert(b, name, *side, shift) for side in sides))
    return call_intrinsic(b, f"llvm.aarch64.neon.v{name}.v16i8", into.type, [into, source, I32(shift)])


def emit_mask_from_bits(b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """Return a boolean for each bit of an integer, the lowest first. x86 has instructions for this."""
    return (
        mask_from_bits_by_lanes(b, bits)
        if is_arm64(b)
        else b.bitcast(bits, ir.VectorType(ir.IntType(1), bits.type.width))
    )


def emit_spread_bits(b: ir.IRBuilder, bits: ir.Value, target_bit: int) -> ir.Value:
    """Return a byte for each bit of an integer, the lowest first. The bit becomes bit `target_bit` of its byte."""
    kind = ir.VectorType(I8, bits.type.width)
    if not is_arm64(b) or kind.count < 16:
        return b.select(emit_mask_from_bits(b, bits), constant(kind, 1 << target_bit), constant(kind, 0))
    bytes_, ways = bytes_of_bits(b, bits), [target_bit - lane % 8 for lane in range(16)]
    sixteens = [slice_lanes(b, bytes_, first, 16) for first in range(0, kind.count, 16)]
    ways = ir.Constant(sixteens[0].type, ways)
    moved = [call_intrinsic(b, "llvm.aarch64.neon.ushl.v16i8", ways.type, [each, ways]) for each in sixteens]
    return b.and_(concat_all(b, moved), constant(kind, 1 << target_bit))


def is_arm64(b: ir.IRBuilder) -> bool:
    """Return whether the code is for a 64-bit ARM CPU."""
    triple = str(b.module.triple)
    return "aarch64" in triple or "arm64" in triple


def emit_pause(b: ir.IRBuilder) -> ir.Value:
    """Emit the spin-wait hint, if the CPU has one. On arm64 it is `isb`, because `yield` is no delay on most CPUs."""
    if "x86" in str(b.module.triple):
        return call_intrinsic(b, "llvm.x86.sse2.pause", ir.VoidType(), [])
    if is_arm64(b):
        return call_intrinsic(b, "llvm.aarch64.isb", ir.VoidType(), [I32(15)])
    return ir.Constant(I32, 0)


def emit_cycle_counter(b: ir.IRBuilder) -> ir.Value:
    """Read a clock that runs alike on all cores: rdtsc, or the virtual counter of aarch64."""
    triple = str(b.module.triple)
    if any(name in triple for name in ("x86", "aarch64", "arm64")):
        return call_intrinsic(b, "llvm.readcyclecounter", I64, [])
    return I64(0)
