"""The register tile: R rows of weights by T tokens, the heart of matrix multiplication.

Both operands come as streams of records, one for every 32 columns, already in the order in which the dot product
instruction eats them: the weights' is written by `quant.rows`, the activations' by `quant.activations`.

    panel record:       codes[8][R][4]  scale[32/group][R]  min[32/group][R]
    activation record:  high[8][T][4]  low[8][T][4]  scale[T]  sums32[T]  sums16[2][T]

A row has a sum for each place of a group in a superblock of 256 columns, so the tile keeps as many tiles of sums in
memory. `quant.rows` does the same for single tokens, with a lane for each place; and the sums of all places are added
up in one order here and there.

A micro-kernel has more accumulators than one would write out, so its LLVM IR is emitted by loops.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types

from quant.simd import I32, I64, constant, emit_dot4, emit_fma
from quant.vectors import Vector, emit_load, emit_splat, emit_sum, intrinsic, word


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

    def record(self, b: ir.IRBuilder, panel: ir.Value, x: ir.Value, places: ir.Value) -> None:
        """Add one record of 32 columns to the sums of its places, which lie one tile after the other."""
        parts, rows, tokens = 32 // self.group, self.rows, self.tokens
        for part in range(parts):
            sums = self.integer_sums(b, panel, x, part)
            scale = emit_load(b, self.floats, b.add(panel, I64(32 * rows + 4 * rows * part)))
            least = emit_load(b, self.floats, b.add(panel, I64(32 * rows + 4 * rows * (parts + part))))
            x_sums = 68 * tokens if parts == 1 else 72 * tokens + 4 * tokens * part
            for t in range(tokens):
                at = b.add(places, I64(4 * rows * (tokens * part + t)))
                scaled = b.fmul(b.sitofp(sums[t], self.floats), self.everywhere(b, x, 64 * tokens + 4 * t))
                acc = emit_fma(b, scaled, scale, emit_load(b, self.floats, at))
                acc = emit_fma(b, least, self.everywhere(b, x, x_sums + 4 * t), acc)
                b.store(acc, b.inttoptr(at, self.floats.as_pointer()), align=4)

    def emit(self, b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        """The loop over the records; place i holds record i, i + 8, i + 16, ..."""
        panel, x, records, out = args
        place_bytes = 4 * self.rows * self.tokens * (32 // self.group)

        def step(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            panel_at = b.add(panel, b.mul(i, I64(panel_record_bytes(self.rows, self.group))))
            place = b.add(out, b.mul(b.and_(i, I64(7)), I64(place_bytes)))
            self.record(b, panel_at, b.add(x, b.mul(i, I64(80 * self.tokens))), place)
            return []

        emit_sum(b, records, [], step)
        return out


def tile_word(rows: int, tokens: int, group: int, bits: int) -> Any:
    """The word tile(panel, x, records, out): out[place][T][R] += the sums over the records of each place.

    Within a group the sum is exact, in integers; scales are applied once, in single precision.
    """
    shape = Tile(rows, tokens, group, bits)

    @intrinsic
    def tile(typingctx: Any, panel: Any, x: Any, records: Any, out: Any) -> Any:
        return word(types.void, [types.int64] * 4, shape.emit)

    return tile


def total_of_places(rows: int, places: int, stride: int) -> Any:
    """The word that adds the sums of all places, `stride` bytes apart, in the order in which `total` adds lanes."""
    kind = Vector(types.float32, rows)

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        sums = [emit_load(b, kind.llvm, b.add(args[0], I64(stride * place))) for place in range(places)]
        while len(sums) > 1:
            half = len(sums) // 2
            sums = [b.fadd(low, high) for low, high in zip(sums[:half], sums[half:], strict=True)]
        return sums[0]

    @intrinsic
    def total_at(typingctx: Any, address: Any) -> Any:
        return word(kind, [types.int64], emit)

    return total_at
