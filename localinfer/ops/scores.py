"""The scores of a block: each row's query times the keys of 64 cells. Layouts are those of `localinfer.ops.attend`."""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import float32, types

from localinfer.ops.cells import F32, CellType
from localinfer.ops.layout import BLOCK, PANEL
from quant.jit.cpu import target
from quant.jit.emit import I64, constant, emit_load, emit_splat
from quant.jit.simd import emit_fma
from quant.jit.vectors import (
    convert,
    emit_convert,
    emit_prefetch,
    emit_sum,
    f16x16,
    f32x16,
    fma,
    inline,
    intrinsic,
    load,
    splat,
    store,
    total,
    word,
)


def emit_ahead(b: ir.IRBuilder, address: ir.Value, step: ir.Value, nbytes: int) -> None:
    """Ask for what the next loop will read, so many bytes in every step of this one."""
    here = b.add(address, b.mul(step, I64(nbytes)))
    for line in range(0, nbytes, 64):
        emit_prefetch(b, b.add(here, I64(line)), level=1)


def widest(rows: int, limit: int) -> int:
    """How many vectors a tile of rows takes at a time: 4, 2 or 1, at most `limit`."""
    return next((n for n in (4, 2) if n * rows <= target().sums and limit % n == 0), 1)


def score_word(kind: CellType, rows: int, panels: int, key_dim: int, dimensions: int, ahead_bytes: int) -> Any:
    """The word score(q, k, out, ahead): out[row][16 * panel + cell] = q . k for some neighbouring panels, over so many
    dimensions. Where cells have scales, it adds to what is there.
    """
    step_apart, apart = kind.dimensions
    panel_bytes, scale_bytes = PANEL * kind.head_bytes(key_dim), 2 * PANEL * kind.scaled

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        q, k, out, ahead = args
        places = [b.add(k, I64(panel_bytes * panel)) for panel in range(panels)]

        def step(i: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
            emit_ahead(b, ahead, i, ahead_bytes)
            q_at, k_at = b.add(q, b.mul(i, I64(4 * step_apart))), b.mul(i, I64(PANEL * kind.code_bytes // 16))
            for n in range(2):
                keys = [kind.read(b, b.add(place, b.add(k_at, I64(scale_bytes))), n) for place in places]
                for row in range(rows):
                    query_at = b.add(q_at, I64(4 * (key_dim * row + apart * n)))
                    query = emit_splat(b, F32, emit_load(b, F32.element, query_at))
                    for panel, key in enumerate(keys):
                        at = row * panels + panel
                        acc[at] = emit_fma(b, key, query, acc[at])
            return acc

        sums = emit_sum(b, I64(dimensions // 2), [constant(F32, 0.0)] * (rows * panels), step)
        if kind.scaled:
            halves = [emit_load(b, f16x16.llvm, place) for place in places]
            scales = [emit_convert(b, half, types.float16, types.float32, F32) for half in halves]
        for at, value in enumerate(sums):
            place = b.add(out, I64(4 * BLOCK * (at // panels) + 64 * (at % panels)))
            if kind.scaled:
                value = emit_fma(b, value, scales[at % panels], emit_load(b, F32, place))
            b.store(value, b.inttoptr(place, F32.as_pointer()), align=4)
        return out

    @intrinsic
    def score(typingctx: Any, q: Any, k: Any, out: Any, ahead: Any) -> Any:
        return word(types.void, [types.int64] * 4, emit)

    return score


def begin_word(kind: CellType, rows: int, key_dim: int) -> Any:
    """The word begin(q, k, p): the scores of a block begin with the product of each row's query and the block's anchor,
    or with 0 where there is none."""
    anchored = kind.anchored

    @inline
    def begin(q: int, k: int, p: int) -> None:
        for row in range(rows):
            sums = splat(f32x16, float32(0.0))
            if anchored:
                for i in range(0, key_dim, 16):
                    anchor = convert(f32x16, load(f16x16, k + 2 * i))
                    sums = fma(anchor, load(f32x16, q + 4 * (key_dim * row + i)), sums)
                sums = splat(f32x16, total(sums))
            for at in range(p + 4 * BLOCK * row, p + 4 * BLOCK * (row + 1), 64):
                store(at, sums)

    return begin


def score_block_word(kind: CellType, rows: int, key_dim: int, key_size: int, other_bytes: int) -> Any:
    """The word score_block(q, k, p, ahead, count): the scores of the first panels of a block, `count` or a few more; as
    large a part of `other_bytes` of values is asked for meanwhile."""
    wide, begin = widest(rows, 4), begin_word(kind, rows, key_dim)
    narrow = max(1, wide // 2)
    whole = key_dim if kind.scaled else key_size + key_size % 2  # what a key is padded with is worth nothing
    dimensions, share = 32 if kind.scaled else whole, other_bytes // 4
    panel_bytes, group_bytes = PANEL * kind.head_bytes(key_dim), PANEL * kind.group_bytes
    scaled, groups, anchor_bytes = kind.scaled, key_dim // 32, kind.anchor_bytes(key_dim)

    def scores_of(panels: int) -> Any:
        """The word put(q, keys, p, ahead): the scores of so many neighbouring panels."""
        score = score_word(kind, rows, panels, key_dim, dimensions, share * panels // (whole // 2))

        @inline
        def put(q: int, keys: int, p: int, ahead: int) -> None:
            if scaled:
                for group in range(groups):
                    score(q + 128 * group, keys + group_bytes * group, p, ahead + share * panels // groups * group)
            else:
                score(q, keys, p, ahead)

        return put

    put_wide = scores_of(wide)
    put_narrow = scores_of(narrow) if narrow < wide else put_wide

    @inline
    def score_block(q: int, k: int, p: int, ahead: int, count: int) -> None:
        if scaled:
            begin(q, k, p)
        keys, panel = k + anchor_bytes, 0
        while panel < count:
            if count - panel > narrow:
                put_wide(q, keys + panel_bytes * panel, p + 64 * panel, ahead + share * panel)
                panel += wide
            else:
                put_narrow(q, keys + panel_bytes * panel, p + 64 * panel, ahead + share * panel)
                panel += narrow

    return score_block
