"""The register tile: R rows of weights by T tokens, the heart of matrix multiplication.

Both operands come as streams of records, one for every 32 columns, already in the order in which the dot product
instruction eats them: the weights' is written by `quant.rows`, the activations' by `quant.activations`.

    panel record:       codes[8][R][4]  scale[32/group][R]  min[32/group][R]
    activation record:  high[8][T][4]  low[8][T][4]  scale[T]  sums32[T]  sums16[2][T]

A micro-kernel has more accumulators than one would write out, so its LLVM IR is emitted by loops.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types

from quant.simd import I32, I64, Vector, constant, emit_dot4, emit_fma, emit_load, emit_splat, intrinsic, word


def panel_record_bytes(rows: int, group: int) -> int:
    """The bytes of one panel record."""
    return 32 * rows + 8 * rows * (32 // group)


@dataclass(frozen=True)
class Tile:
    """`rows` by `tokens` sums in registers; a scale and a min for every `group` columns; codes below 2**bits."""

    rows: int
    tokens: int
    group: int
    bits: int

    @property
    def floats(self) -> ir.VectorType:
        """A float for every row."""
        return Vector(types.float32, self.rows).llvm

    @property
    def ints(self) -> ir.VectorType:
        """An integer for every row."""
        return Vector(types.int32, self.rows).llvm

    @property
    def codes(self) -> ir.VectorType:
        """Four codes for every row."""
        return Vector(types.uint8, 4 * self.rows).llvm

    def four(self, b: ir.IRBuilder, address: ir.Value, offset: int) -> ir.Value:
        """Four activations of one token, in front of every row."""
        number = emit_load(b, I32, b.add(address, I64(offset)))
        return b.bitcast(emit_splat(b, self.ints, number), self.codes)

    def everywhere(self, b: ir.IRBuilder, address: ir.Value, offset: int) -> ir.Value:
        """A number of one token, in front of every row."""
        return emit_splat(b, self.floats, emit_load(b, ir.FloatType(), b.add(address, I64(offset))))

    def integer_sums(self, b: ir.IRBuilder, panel: ir.Value, x: ir.Value, part: int) -> list[ir.Value]:
        """The exact dot products over one group of the record: 128 * high + low."""
        sums = [constant(self.ints, 0)] * self.tokens
        for low in (0, 1):
            if low:
                sums = [b.shl(s, constant(self.ints, 7)) for s in sums]
            for k in range(part * self.group // 4, (part + 1) * self.group // 4):
                codes = emit_load(b, self.codes, b.add(panel, I64(k * self.rows * 4)))
                for t in range(self.tokens):
                    activation = self.four(b, x, ((low * 8 + k) * self.tokens + t) * 4)
                    sums[t] = emit_dot4(b, sums[t], codes, activation, self.bits)
        return sums

    def record(self, b: ir.IRBuilder, panel: ir.Value, x: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
        """Add one record of 32 columns to the accumulators."""
        parts, rows, tokens = 32 // self.group, self.rows, self.tokens
        for part in range(parts):
            sums = self.integer_sums(b, panel, x, part)
            scale = emit_load(b, self.floats, b.add(panel, I64(32 * rows + 4 * rows * part)))
            least = emit_load(b, self.floats, b.add(panel, I64(32 * rows + 4 * rows * (parts + part))))
            x_sums = 68 * tokens if parts == 1 else 72 * tokens + 4 * tokens * part
            for t in range(tokens):
                scaled = b.fmul(b.sitofp(sums[t], self.floats), self.everywhere(b, x, 64 * tokens + 4 * t))
                acc[t] = emit_fma(b, scaled, scale, acc[t])
                acc[t] = emit_fma(b, least, self.everywhere(b, x, x_sums + 4 * t), acc[t])
        return acc

    def emit(self, b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        """The loop over the records."""
        panel, x, groups, out = args
        before, loop, done = b.block, b.append_basic_block("record"), b.append_basic_block("done")
        b.branch(loop)
        b.position_at_end(loop)
        index, panel_at, x_at = (b.phi(I64) for _ in range(3))
        acc = [b.phi(self.floats) for _ in range(self.tokens)]
        after = self.record(b, panel_at, x_at, list(acc))
        following = b.add(index, I64(1))
        steps = [
            (index, I64(0), following),
            (panel_at, panel, b.add(panel_at, I64(panel_record_bytes(self.rows, self.group)))),
            (x_at, x, b.add(x_at, I64(80 * self.tokens))),
            *((phi, constant(self.floats, 0.0), value) for phi, value in zip(acc, after, strict=True)),
        ]
        for phi, start, then in steps:
            phi.add_incoming(start, before)
            phi.add_incoming(then, b.block)
        b.cbranch(b.icmp_signed("<", following, groups), loop, done)
        b.position_at_end(done)
        for t, value in enumerate(after):
            b.store(value, b.inttoptr(b.add(out, I64(4 * self.rows * t)), self.floats.as_pointer()), align=4)
        return out


def tile_word(rows: int, tokens: int, group: int, bits: int) -> Any:
    """The word tile(panel, x, groups, out): out[T][R] = the sum over groups of 32 columns, in single precision.

    Within a group the sum is exact, in integers; scales are applied once for every `group` columns.
    """
    shape = Tile(rows, tokens, group, bits)

    @intrinsic
    def tile(typingctx: Any, panel: Any, x: Any, groups: Any, out: Any) -> Any:
        return word(types.void, [types.int64] * 4, shape.emit)

    return tile
