"""The register tile: R rows of weights by T tokens, the heart of matrix multiplication.

Both operands come as streams of records, one for every 32 columns, already in the order in which the dot product
instruction eats them: the weights' is written by `quant.products.panels`, the activations' is that of
`quant.products.layout`.

    panel record:   codes[32/D][R][D]  scale[32/group][R]  min[32/group][R]      no mins in a format with a zero

D is the target's depth, the columns that one instruction adds up.

A row has a sum for each place of a group in a superblock of 256 columns. Records of the same place are neighbours, so
that its sums stay in registers, and one place is summed up after the other. `quant.products.rows` does the same for
single tokens, with a lane for each place; and the sums of all places are added up in one order here and there.

A micro-kernel has more accumulators than one would write out, so its LLVM IR is emitted by loops.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types

from quant.jit.cpu import target
from quant.jit.emit import I64, constant, emit_load, emit_splat
from quant.jit.simd import Block, block_takes_away, emit_block, emit_fma
from quant.jit.vectors import Vector, emit_sum, intrinsic, word
from quant.products.layout import (
    MAGIC_BITS,
    SCALE,
    SHIFT,
    STARTS16,
    STARTS32,
    SUMS16,
    SUMS32,
    record_bytes,
    starts_with_magic,
)


@dataclass(frozen=True)
class Tile:
    """`rows` by `tokens` sums in registers, of records that hold `width` tokens.

    There are a scale and a min, or a zero, for every `group` columns; codes are below 2**bits.
    """

    rows: int
    tokens: int
    width: int
    passes: int
    group: int
    bits: int
    zero: int

    @property
    def parts(self) -> int:
        """The groups of a record."""
        return 32 // self.group

    @property
    def panel_record(self) -> int:
        """The bytes of a record of weights."""
        return 32 * self.rows + 4 * self.rows * self.parts * (1 if self.zero else 2)

    @property
    def floats(self) -> ir.VectorType:
        """A float for every row."""
        return Vector(types.float32, self.rows).llvm

    @property
    def ints(self) -> ir.VectorType:
        """An integer for every row."""
        return Vector(types.int32, self.rows).llvm

    def everywhere(self, b: ir.IRBuilder, kind: ir.VectorType, x: ir.Value, row: int, token: int) -> ir.Value:
        """A token's number in a row of the record, in front of every row of weights."""
        at = b.add(x, I64(4 * self.width * (8 * self.passes + row) + 4 * token))
        return emit_splat(b, kind, emit_load(b, kind.element, at))

    def starts(self, b: ir.IRBuilder, x: ir.Value, part: int) -> list[ir.Value]:
        """What the last pass of each token starts from: what the codes' zero takes away, and MAGIC."""
        bias = constant(self.ints, MAGIC_BITS if starts_with_magic(self.passes) else 0)
        left = self.zero - block_takes_away(self.bits)
        if not left:
            return [bias] * self.tokens
        row = STARTS32 if self.parts == 1 else STARTS16 + part
        starts = [self.everywhere(b, self.ints, x, row, token) for token in range(self.tokens)]
        if target().takes_any_byte:
            return starts
        return [b.sub(bias, b.mul(total, constant(self.ints, left))) for total in starts]

    def dots(
        self, b: ir.IRBuilder, sums: list[ir.Value], panel: ir.Value, x: ir.Value, one_pass: int, part: int
    ) -> list[ir.Value]:
        """One pass of dot products over a group, added to the sums."""
        columns, first = self.group, self.group * part
        peak = 64 if one_pass else 127
        block = Block(self.rows, self.tokens, self.width, columns // target().depth, self.bits, peak)
        codes, bytes_at = b.add(panel, I64(first * self.rows)), b.add(x, I64((32 * one_pass + first) * self.width))
        return emit_block(b, sums, codes, bytes_at, block)

    def group_sums(self, b: ir.IRBuilder, panel: ir.Value, x: ir.Value, part: int) -> list[ir.Value]:
        """The exact dot products over a group of the record, as floats, times the activations' scales."""
        starts = self.starts(b, x, part)
        if self.passes == 2:
            high = self.dots(b, [constant(self.ints, 0)] * self.tokens, panel, x, 0, part)
            seven = constant(self.ints, 7)
            starts = [b.add(start, b.shl(s, seven)) for start, s in zip(starts, high, strict=True)]
        sums = self.dots(b, starts, panel, x, self.passes - 1, part)
        return [self.scaled(b, s, x, token) for token, s in enumerate(sums)]

    def scaled(self, b: ir.IRBuilder, total: ir.Value, x: ir.Value, token: int) -> ir.Value:
        """The sum of a token times its scale, rounded once."""
        scale = self.everywhere(b, self.floats, x, SCALE, token)
        if starts_with_magic(self.passes):
            return emit_fma(b, b.bitcast(total, self.floats), scale, self.everywhere(b, self.floats, x, SHIFT, token))
        return b.fmul(b.sitofp(total, self.floats), scale)

    def added(
        self, b: ir.IRBuilder, acc: Sequence[ir.Value], panel: ir.Value, x: ir.Value, part: int
    ) -> list[ir.Value]:
        """The accumulators of all tokens, and one group of a record."""
        sums = self.group_sums(b, panel, x, part)
        scale = emit_load(b, self.floats, b.add(panel, I64(4 * self.rows * (8 + part))))
        acc = [emit_fma(b, scaled, scale, so_far) for scaled, so_far in zip(sums, acc, strict=True)]
        if self.zero:
            return acc
        least = emit_load(b, self.floats, b.add(panel, I64(4 * self.rows * (8 + self.parts + part))))
        row = SUMS32 if self.parts == 1 else SUMS16 + part
        return [emit_fma(b, least, self.everywhere(b, self.floats, x, row, t), a) for t, a in enumerate(acc)]

    def emit(self, b: ir.IRBuilder, args: Sequence[ir.Value], part: int) -> ir.Value:
        """The loop over the records of a place."""
        panel, x, records, out = args
        x_record = record_bytes(self.width, self.passes)

        def step(i: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
            panel_at, x_at = b.add(panel, b.mul(i, I64(self.panel_record))), b.add(x, b.mul(i, I64(x_record)))
            return self.added(b, acc, panel_at, x_at, part)

        for token, acc in enumerate(emit_sum(b, records, [constant(self.floats, 0.0)] * self.tokens, step)):
            at = b.add(out, I64(4 * self.rows * token))
            b.store(acc, b.inttoptr(at, self.floats.as_pointer()), align=4)
        return out


def tile_word(shape: Tile, part: int) -> Any:
    """The word tile(panel, x, records, out): out[width][R] = the sums over one of the groups of some records.

    Within a group the sum is exact, in integers; scales are applied once, in single precision.
    """

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return shape.emit(b, args, part)

    @intrinsic
    def tile(typingctx: Any, panel: Any, x: Any, records: Any, out: Any) -> Any:
        return word(types.void, [types.int64] * 4, emit)

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
