"""The codebooks of the IQ formats, and their lookup.

A codebook lists the rows of 4 or 8 numbers for which a format has a code. ggml's formats define the codebooks.
codebooks.npz stores them as int8 (count, columns); tests/making/make_codebooks.py extracts them from the gguf package:

  iq3_s      512 x 4    odd numbers, 1 to 15
  iq3_xxs    256 x 4    4, 12, 20, 28, 36, 44, 52, 62
  iq2_s     1024 x 8    8, 25, 43
  iq2_xs     512 x 8    8, 25, 43
  iq2_xxs    256 x 8    8, 25, 43
  iq1_s     2048 x 8    -1, 0, 1; iq1_m has the same
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from quant.jit.emit import I32, I64
from quant.jit.vectors import Vector, intrinsic, lowering

FILE = Path(__file__).with_name("codebooks.npz")


def load_codebook(name: str) -> NDArray[np.int8]:
    """Return the rows of a format's codebook: int8 (count, columns), where count is a power of two."""
    with np.load(FILE) as tables:
        table: NDArray[np.int8] = tables[name]
    assert len(table) & (len(table) - 1) == 0
    return table


# Row indices are bit fields of scalar integers. Extracting each of them from a vector register would be slower, and so
# is the gather instruction of AVX-512. Indices are taken modulo the table size, a power of two, so no file content can
# cause a read outside the table.


def emit_table_rows(b: ir.IRBuilder, table: NDArray[np.int8], numbers: Sequence[ir.Value]) -> ir.Value:
    """Return rows of a table, one after the other, as bytes. The table becomes a constant of the object file."""
    size, columns = table.shape
    kind = ir.ArrayType(ir.IntType(8 * columns), size)
    variable = ir.GlobalVariable(b.module, kind, b.module.get_unique_name("codebook"))
    variable.linkage, variable.global_constant, variable.align = "internal", True, 64
    variable.initializer = ir.Constant(kind, table.view(f"<u{columns}")[:, 0].tolist())
    row = {4: ir.FloatType(), 8: ir.DoubleType()}[columns]  # LLVM merges loads of these types into the vector
    first_row = b.bitcast(variable, row.as_pointer())
    rows = ir.Constant(ir.VectorType(row, len(numbers)), ir.Undefined)
    for lane, number in enumerate(numbers):
        entry = b.load(b.gep(first_row, [number], inbounds=True, source_etype=row))
        rows = b.insert_element(rows, entry, I32(lane))
    return b.bitcast(rows, ir.VectorType(ir.IntType(8), len(numbers) * columns))


def make_codebook_lookup(table: NDArray[np.int8], bits: int) -> Any:
    """Return the inlined function entries(numbers): the rows whose indices are fields of `bits` bits, the first in the
    lowest.
    """
    size, columns = table.shape

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        kind = args[0].type
        fields = [b.lshr(args[0], kind(at)) for at in range(0, kind.width, bits)]
        return emit_table_rows(b, table, [b.zext(b.and_(field, kind(size - 1)), I64) for field in fields])

    @intrinsic
    def entries(typingctx: Any, numbers: Any) -> Any:
        return lowering(Vector(types.uint8, columns * numbers.bitwidth // bits), [numbers], emit)

    return entries


def make_split_codebook_lookup(table: NDArray[np.int8], bits: int) -> Any:
    """Return the inlined function entries(low, high): four rows whose indices have eight bits in `low` and the rest in
    `high`.

    The high bits of each index are a field of `bits` bits in `high`, the first in the lowest.
    """
    size, columns = table.shape

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        low, high = (b.zext(arg, I64) for arg in args)
        above = b.shl(high, I64(8))
        numbers = [
            b.or_(b.and_(b.lshr(low, I64(8 * i)), I64(255)), b.and_(b.lshr(above, I64(bits * i)), I64(size - 256)))
            for i in range(4)
        ]
        return emit_table_rows(b, table, numbers)

    @intrinsic
    def entries(typingctx: Any, low: Any, high: Any) -> Any:
        return lowering(Vector(types.uint8, columns * 4), [types.uint32, high], emit)

    return entries
