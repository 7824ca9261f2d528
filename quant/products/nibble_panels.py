"""Panels of formats that hold 32 weights in a block of nibbles (`quant.codes.nibbles`): rows are transposed as they lie
in the file, two codes in a byte, and only then taken apart. That is half of the work of doing it the other way round,
and nothing is written down in between.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import int64, types

from quant.codes.nibbles import Block, offset
from quant.jit.emit import I16, I32, I64, constant, emit_load, joined
from quant.jit.simd import emit_widen_half
from quant.jit.vectors import Vector, inline, intrinsic, prefetch, store, word
from quant.products.activations import number_of, slot, superblocks_of

LOW = 0x0F0F0F0F


def put_block_word(block: Block, rows: int, moved: int) -> Any:
    """The word put_block(addresses, at, place): the block that lies `at` bytes behind each of R addresses becomes a
    record; `moved` is added to its codes.

    Sixteen bytes of rows i, i + 4, i + 8, ... are loaded as the parts of one vector; interleaving four such vectors,
    part by part, first by single numbers and then by pairs, leaves the rows in their order.
    """
    scale_at, codes_at, has_min = offset(block, "d"), offset(block, "qs"), "m" in (block.names or ())
    parts, kind, floats = rows // 4, ir.VectorType(I32, rows), Vector(types.float32, rows).llvm

    def in_each_part(pattern: Sequence[int]) -> ir.Constant:
        """Lanes of two vectors, the second's from 4 on, in every part of four."""
        picks = [4 * part + pick % 4 + rows * (pick // 4) for part in range(parts) for pick in pattern]
        return ir.Constant(kind, picks)

    singles = [in_each_part([0, 4, 1, 5]), in_each_part([2, 6, 3, 7])]
    pairs = [in_each_part([0, 1, 4, 5]), in_each_part([2, 3, 6, 7])]

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        addresses, at, place = args
        blocks = [b.add(emit_load(b, I64, b.add(addresses, I64(8 * row))), at) for row in range(rows)]

        def put(vector: ir.Value, offset: int) -> None:
            b.store(vector, b.inttoptr(b.add(place, I64(offset)), vector.type.as_pointer()), align=4)

        def strided(first: int) -> ir.Value:
            """The nibbles of every fourth row."""
            return joined(
                b, [emit_load(b, ir.VectorType(I32, 4), b.add(each, I64(codes_at))) for each in blocks[first::4]]
            )

        v0, v1, v2, v3 = (strided(first) for first in range(4))
        firsts, seconds = ([b.shuffle_vector(v, w, mask) for mask in singles] for v, w in ((v0, v1), (v2, v3)))
        both = [b.shuffle_vector(v, w, mask) for v, w in zip(firsts, seconds, strict=True) for mask in pairs]
        low, more = constant(kind, LOW), constant(kind, moved * 0x01010101)
        for i, vector in enumerate(both):
            put(b.add(b.and_(vector, low), more), 4 * rows * i)
            put(b.add(b.and_(b.lshr(vector, constant(kind, 4)), low), more), 4 * rows * (4 + i))
        numbers = ir.Constant(ir.VectorType(I32 if has_min else I16, rows), ir.Undefined)
        for row, each in enumerate(blocks):
            number = emit_load(b, numbers.type.element, b.add(each, I64(scale_at)))
            numbers = b.insert_element(numbers, number, I32(row))
        for i in range(1 + has_min):
            sixteen = b.trunc(b.lshr(numbers, constant(kind, 16 * i)), ir.VectorType(I16, rows)) if has_min else numbers
            put(emit_widen_half(b, b.bitcast(sixteen, ir.VectorType(ir.HalfType(), rows)), floats), 4 * rows * (8 + i))
        return place

    @intrinsic
    def put_block(typingctx: Any, addresses: Any, at: Any, place: Any) -> Any:
        return word(types.void, [types.int64] * 3, emit)

    return put_block


def unpack_blocks_word(block: Block, rows: int, record: int, moved: int) -> Any:
    """The word unpack(w, row_bytes, valid, n, notes, panel) of `quant.products.panels`."""
    put_block, size = put_block_word(block, rows, moved), block.itemsize

    @inline
    def unpack(w: int, row_bytes: int, valid: int, n: int, notes: int, panel: int) -> None:
        room, groups = superblocks_of(n), n // 32
        for i in range(rows):
            store(notes + 8 * i, int64(w + min(i, valid - 1) * row_bytes))
        ahead = w + rows * row_bytes
        for group in range(groups):
            for line in range(ahead, ahead + rows * size, 64):
                prefetch(line)
            ahead += rows * size
            put_block(notes, size * group, panel + record * number_of(slot(group, groups), room))

    return unpack
