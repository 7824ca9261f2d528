"""The register tile: R rows of weights by T tokens, the heart of matrix multiplication.

Both operands come as streams of records, one for every 32 columns, already in the order in which the dot product
instruction eats them: the weights' is written by `quant.rows`, the activations' by `quant.activations`.

    panel record:       codes[8][R][4]  scale[32/group][R]  min[32/group][R]
    activation record:  high[8][T][4]  low[8][T][4]  scale[T]  sums32[T]  sums16[2][T]
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic

from quant.simd import I32, I64, Vector, call_llvm, constant, emit_dot4, emit_load, emit_splat, suffix, word


def panel_record_bytes(rows: int, group: int) -> int:
    """The bytes of one panel record."""
    return 32 * rows + 8 * rows * (32 // group)


def tile_word(rows: int, tokens: int, group: int, bits: int) -> Any:
    """The word `tile(panel, x, groups, out)`: out[T][R] = sum over groups of 32 columns, in single precision.

    Within a group the sum is exact (integers); scales are applied once for every `group` columns.
    """
    f32, i32 = Vector(types.float32, rows).llvm, Vector(types.int32, rows).llvm
    u8 = Vector(types.uint8, 4 * rows).llvm
    seven = constant(i32, 7)

    def codes_at(b: ir.IRBuilder, address: ir.Value, offset: int) -> ir.Value:
        return emit_load(b, u8, b.add(address, I64(offset)))

    def floats_at(b: ir.IRBuilder, address: ir.Value, offset: int) -> ir.Value:
        return emit_load(b, f32, b.add(address, I64(offset)))

    def everywhere(b: ir.IRBuilder, address: ir.Value, offset: int) -> ir.Value:
        return emit_splat(b, f32, emit_load(b, ir.FloatType(), b.add(address, I64(offset))))

    def four(b: ir.IRBuilder, address: ir.Value, offset: int) -> ir.Value:
        """Four activations of one token, in front of every row."""
        number = emit_splat(b, i32, emit_load(b, I32, b.add(address, I64(offset))))
        return b.bitcast(number, u8)

    def integer_sums(b: ir.IRBuilder, panel: ir.Value, x: ir.Value, part: int) -> list[ir.Value]:
        """The exact dot products over one part of the record: 128 * high + low."""
        sums = [constant(i32, 0)] * tokens
        for low in (0, 1):
            if low:
                sums = [b.shl(s, seven) for s in sums]
            for k in range(part * group // 4, (part + 1) * group // 4):
                codes = codes_at(b, panel, k * rows * 4)
                for t in range(tokens):
                    activation = four(b, x, (low * 8 + k) * tokens * 4 + t * 4)
                    sums[t] = emit_dot4(b, sums[t], codes, activation, bits)
        return sums

    def record(b: ir.IRBuilder, panel: ir.Value, x: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
        """Add one record of 32 columns to the accumulators."""
        parts = 32 // group
        for part in range(parts):
            sums = integer_sums(b, panel, x, part)
            scale = floats_at(b, panel, 32 * rows + 4 * rows * part)
            least = floats_at(b, panel, 32 * rows + 4 * rows * (parts + part))
            for t in range(tokens):
                x_scale = everywhere(b, x, 64 * tokens + 4 * t)
                x_sum = everywhere(b, x, 64 * tokens + 4 * tokens * (1 if parts == 1 else 2 + part) + 4 * t)
                scaled = b.fmul(b.sitofp(sums[t], f32), x_scale)
                acc[t] = fused(b, scaled, scale, acc[t])
                acc[t] = fused(b, least, x_sum, acc[t])
        return acc

    def fused(b: ir.IRBuilder, p: ir.Value, q: ir.Value, r: ir.Value) -> ir.Value:
        return call_llvm(b, f"llvm.fma.{suffix(f32)}", f32, [p, q, r])

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        panel, x, groups, out = args
        before, loop, done = b.block, b.append_basic_block("record"), b.append_basic_block("done")
        b.branch(loop)
        b.position_at_end(loop)
        index, panel_at, x_at = (b.phi(I64) for _ in range(3))
        acc = [b.phi(f32) for _ in range(tokens)]
        after = record(b, panel_at, x_at, list(acc))
        steps = [
            (index, I64(0), b.add(index, I64(1))),
            (panel_at, panel, b.add(panel_at, I64(panel_record_bytes(rows, group)))),
            (x_at, x, b.add(x_at, I64(80 * tokens))),
            *((phi, constant(f32, 0.0), value) for phi, value in zip(acc, after, strict=True)),
        ]
        for phi, start, following in steps:
            phi.add_incoming(start, before)
            phi.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", steps[0][2], groups), loop, done)
        b.position_at_end(done)
        for t in range(tokens):
            b.store(after[t], b.inttoptr(b.add(out, I64(4 * rows * t)), f32.as_pointer()), align=4)
        return out

    @intrinsic
    def tile(typingctx: Any, panel: Any, x: Any, groups: Any, out: Any) -> Any:
        return word(types.void, [types.int64] * 4, emit)

    return tile
