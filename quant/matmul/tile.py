"""The register tile: the products of R rows of weights and T tokens, the inner kernel of matrix multiplication.

Both operands are streams of records, one for every 32 columns, in the order in which the dot product instruction reads
them. `quant.matmul.panels` writes the weights' records; `quant.matmul.layout` defines the activations' records.

  panel record:   codes[32/D][R][D]  scale[32/group][R]  min[32/group][R]      no mins in a format with a zero point

D is the target's depth: the number of columns that one instruction adds up.

A row has a sum for each position of a group in a superblock of 256 columns. Records of the same position are adjacent,
so that its sums stay in registers, and one position is summed up after the other. `quant.matmul.rows` does the same for
single tokens, with a lane for each position. Both add up the sums of all positions in the same order.

The kernel has too many accumulators to write out, so loops emit its LLVM IR.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types

from quant.jit.cpu import target
from quant.jit.emit import I64, constant, emit_load, emit_splat, every_second_lane
from quant.jit.emit_numeric import emit_accumulation_loop
from quant.jit.simd import DotBlock, emit_dot_block, emit_fma
from quant.jit.vectors import Vector, intrinsic, lowering
from quant.matmul.layout import (
    MAGIC,
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
from quant.matmul.reductions import emit_shuffle


@dataclass(frozen=True)
class Tile:
    """A register tile of `rows` by `tokens` sums, for panels of `panel_rows` rows and activation records of
    `record_tokens` tokens.

    Every `group_size` columns share a scale, and a min if the format has mins. Codes are below 2**bits, or signed bytes
    if `target().has_signed_panels`. They have the zero point `zero_point`, after `code_shift` was added to that of the
    format.
    """

    rows: int
    tokens: int
    panel_rows: int
    record_tokens: int
    passes: int
    group_size: int
    bits: int
    zero_point: int
    code_shift: int
    has_mins: bool
    subtracts: bool = False  # see `quant.matmul.layout.has_two_conversions`

    @property
    def groups_per_record(self) -> int:
        """The number of groups in a record."""
        return 32 // self.group_size

    @property
    def panel_record_bytes(self) -> int:
        """The size of a weight record in bytes."""
        return 32 * self.panel_rows + 4 * self.panel_rows * self.groups_per_record * (2 if self.has_mins else 1)

    @property
    def vectors(self) -> range:
        """The numbers of the vectors of sums."""
        return range(self.tokens // target().tokens_per_vector)

    @property
    def float_vector(self) -> ir.VectorType:
        """The LLVM type of a vector of sums: a float for every row, of one token or of two in turns."""
        return Vector(types.float32, self.rows * target().tokens_per_vector).llvm

    @property
    def int_vector(self) -> ir.VectorType:
        """The LLVM type of a vector of integer sums."""
        return Vector(types.int32, self.rows * target().tokens_per_vector).llvm

    def starts_row(self, group: int) -> int:
        """Return the row of the activation record with a group's start values."""
        return STARTS32 if self.groups_per_record == 1 else STARTS16 + group

    def emit_broadcast(self, b: ir.IRBuilder, kind: ir.VectorType, x: ir.Value, row: int, vector: int) -> ir.Value:
        """Load the numbers of a vector's tokens from a row of the record, and broadcast them to all rows of weights."""
        together = target().tokens_per_vector
        at = b.add(x, I64(4 * self.record_tokens * (8 * self.passes + row) + 4 * together * vector))
        if together == 1:
            return emit_splat(b, kind, emit_load(b, kind.element, at))
        pairs = ir.VectorType(I64, self.rows)
        return b.bitcast(emit_splat(b, pairs, emit_load(b, I64, at)), kind)

    def emit_load_rows(self, b: ir.IRBuilder, at: ir.Value) -> ir.Value:
        """Load a number for each row, and repeat it for the tokens of a vector."""
        together = target().tokens_per_vector
        numbers = emit_load(b, Vector(types.float32, self.rows).llvm, at)
        if together == 1:
            return numbers
        return emit_shuffle(b, numbers, [lane // together for lane in range(self.rows * together)])

    def emit_starts(self, b: ir.IRBuilder, x: ir.Value, group: int) -> list[ir.Value]:
        """Return the start values of the last pass for each vector: the zero point's contribution, plus MAGIC."""
        bias = constant(self.int_vector, MAGIC_BITS if starts_with_magic(self.passes) else 0)
        if not self.zero_point:
            return [bias] * len(self.vectors)
        row = self.starts_row(group)
        starts = [self.emit_broadcast(b, self.int_vector, x, row, vector) for vector in self.vectors]
        if target().has_exact_u8_dot:
            return starts
        return [b.sub(bias, b.mul(total, constant(self.int_vector, self.zero_point))) for total in starts]

    def emit_dots(
        self, b: ir.IRBuilder, sums: list[ir.Value], panel: ir.Value, x: ir.Value, one_pass: int, group: int
    ) -> list[ir.Value]:
        """Add one pass of dot products over a group to the sums."""
        columns, first = self.group_size, self.group_size * group
        peak = 64 if one_pass else 127
        block = DotBlock(self.rows, self.tokens, self.record_tokens, columns // target().depth, self.bits, peak)
        codes, bytes_at = (
            b.add(panel, I64(first * self.rows)),
            b.add(x, I64((32 * one_pass + first) * self.record_tokens)),
        )
        return emit_dot_block(b, sums, codes, bytes_at, block)

    def emit_group_sums(self, b: ir.IRBuilder, panel: ir.Value, x: ir.Value, group: int) -> list[ir.Value]:
        """Return the exact dot products over a group of the record as floats, times the activations' scales."""
        starts = self.emit_starts(b, x, group)
        if self.passes == 2:
            high = self.emit_dots(b, [constant(self.int_vector, 0)] * len(self.vectors), panel, x, 0, group)
            seven = constant(self.int_vector, 7)
            starts = [b.add(start, b.shl(s, seven)) for start, s in zip(starts, high, strict=True)]
        sums = self.emit_dots(b, starts, panel, x, self.passes - 1, group)
        return [self.emit_scaled(b, s, x, vector) for vector, s in enumerate(sums)]

    def emit_scaled(self, b: ir.IRBuilder, total: ir.Value, x: ir.Value, vector: int) -> ir.Value:
        """Return a vector of integer sums times their tokens' scales, rounded once."""
        scale = self.emit_broadcast(b, self.float_vector, x, SCALE, vector)
        if self.subtracts:
            magic = constant(self.float_vector, float(MAGIC))
            return b.fmul(b.fsub(b.bitcast(total, self.float_vector), magic), scale)
        if starts_with_magic(self.passes):
            return emit_fma(
                b,
                b.bitcast(total, self.float_vector),
                scale,
                self.emit_broadcast(b, self.float_vector, x, SHIFT, vector),
            )
        return b.fmul(b.sitofp(total, self.float_vector), scale)

    def emit_group(
        self, b: ir.IRBuilder, acc: Sequence[ir.Value], panel: ir.Value, x: ir.Value, group: int
    ) -> list[ir.Value]:
        """Add one group of a record to the accumulators of all vectors."""
        return self.emit_weighted(b, self.emit_group_sums(b, panel, x, group), acc, panel, x, group)

    def emit_weighted(
        self,
        b: ir.IRBuilder,
        sums: Sequence[ir.Value],
        acc: Sequence[ir.Value],
        panel: ir.Value,
        x: ir.Value,
        group: int,
    ) -> list[ir.Value]:
        """Add a group's sums, times the scales of the rows, to the accumulators of all vectors, and then its mins."""
        scale = self.emit_load_rows(b, b.add(panel, I64(4 * self.panel_rows * (8 + group))))
        acc = [emit_fma(b, scaled, scale, so_far) for scaled, so_far in zip(sums, acc, strict=True)]
        if not self.has_mins:
            return acc
        least = self.emit_load_rows(b, b.add(panel, I64(4 * self.panel_rows * (8 + self.groups_per_record + group))))
        row = SUMS32 if self.groups_per_record == 1 else SUMS16 + group
        return [emit_fma(b, least, self.emit_broadcast(b, self.float_vector, x, row, v), a) for v, a in enumerate(acc)]

    def emit(self, b: ir.IRBuilder, args: Sequence[ir.Value], group: int) -> ir.Value:
        """Emit the loop over the records of a position."""
        panel, x, records, out = args
        x_record = record_bytes(self.record_tokens, self.passes)

        def step(i: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
            panel_at, x_at = b.add(panel, b.mul(i, I64(self.panel_record_bytes))), b.add(x, b.mul(i, I64(x_record)))
            return self.emit_group(b, acc, panel_at, x_at, group)

        together, start = target().tokens_per_vector, [constant(self.float_vector, 0.0)] * len(self.vectors)
        for vector, acc in enumerate(emit_accumulation_loop(b, records, start, step)):
            for i in range(together):
                sums = acc if together == 1 else every_second_lane(b, acc, i)
                at = b.add(out, I64(4 * self.rows * (together * vector + i)))
                b.store(sums, b.inttoptr(at, sums.type.as_pointer()), align=4)
        return out


@cache
def make_tile(shape: Tile, group: int) -> Any:
    """Return the inlined function tile(panel, x, records, out): sum one group of each record, into float32
    out[width][R].

    Within a group the sum is an exact integer. Scales are applied once, in single precision.
    """

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return shape.emit(b, args, group)

    @intrinsic
    def tile(typingctx: Any, panel: Any, x: Any, records: Any, out: Any) -> Any:
        return lowering(types.void, [types.int64] * 4, emit)

    return tile


@cache
def make_sum_of_positions(rows: int, positions: int, stride: int) -> Any:
    """Return the inlined function that adds the sums of all positions, `stride` bytes apart, in the order of
    `reduce_sum`.
    """
    kind = Vector(types.float32, rows)

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        sums = [emit_load(b, kind.llvm, b.add(args[0], I64(stride * position))) for position in range(positions)]
        while len(sums) > 1:
            half = len(sums) // 2
            sums = [b.fadd(low, high) for low, high in zip(sums[:half], sums[half:], strict=True)]
        return sums[0]

    @intrinsic
    def total_at(typingctx: Any, address: Any) -> Any:
        return lowering(kind, [types.int64], emit)

    return total_at
