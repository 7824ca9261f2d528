"""A tile of queries looks at cells: scores, the online softmax (Milakov and Gimelshein, 2018), weighted sums of values.

Every key and value is loaded and widened once for all rows of a tile. Cells are read in blocks of 64, in the order of
their sequence's table, whatever their positions: a cell counts for a row if its position is within the row's span, from
the oldest that it sees to the newest. What rows share a tile changes no bit of any row.

Scores are in powers of two: a weight is 2^(score - top), where top is a whole number near the largest score so far.
So what was summed before a larger score came is scaled by a power of two, which is exact.

Layouts: keys and values as in `localinfer.ops.cells`; a tile of queries [rows][key_dim]; a block's weights
[rows][64]; spans of rows [rows][oldest, newest], int32; a state: for each row 64 bytes with its top, then
denominator[16] and sums[value_dim].
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import float32, int32, int64, types

from localinfer.ops.cells import F32, CellType
from localinfer.ops.layout import BLOCK, PANEL, row_bytes
from quant.jit.cpu import target
from quant.jit.emit import I64, constant, emit_load, emit_splat
from quant.jit.simd import emit_fma
from quant.jit.vectors import (
    bitcast,
    convert,
    emit_convert,
    emit_fold,
    emit_prefetch,
    emit_sum,
    extract,
    f16x16,
    f32x16,
    fma,
    i32x16,
    inline,
    intrinsic,
    largest,
    load,
    rint,
    select,
    splat,
    store,
    word,
)

Body = Callable[..., None]

LOG2_E = 1.4426950408889634
MINUS_INFINITY = float32(float("-inf"))
DENOMINATOR, SUMS = 64, 128  # where they begin in a row's state
NOTHING, SOME, ALL = 0, 1, 2  # what rows see of a block
BEFORE_ALL = -(1 << 30)  # older than any position: sinks are seen from everywhere


def emit_ahead(b: ir.IRBuilder, address: ir.Value, step: ir.Value, nbytes: int) -> None:
    """Ask for what the next loop will read, so many bytes in every step of this one."""
    here = b.add(address, b.mul(step, I64(nbytes)))
    for line in range(0, nbytes, 64):
        emit_prefetch(b, b.add(here, I64(line)), level=1)


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


def weigh_word(kind: CellType, rows: int, vectors: int, value_dim: int, ahead_bytes: int) -> Any:
    """The word weigh(p, v, sums, ahead): sums[row][..] += p[row][cell] * v[cell][..] of a block, some vectors wide."""
    value_bytes = value_dim // 32 * kind.code_bytes

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        p, v, sums, ahead = args
        offsets = [row_bytes(value_dim) * row + 64 * vector for row in range(rows) for vector in range(vectors)]
        start = [emit_load(b, F32, b.add(sums, I64(offset))) for offset in offsets]

        def step(cell: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
            emit_ahead(b, ahead, cell, ahead_bytes)
            p_at, v_at = b.add(p, b.mul(cell, I64(4))), b.add(v, b.mul(cell, I64(value_bytes)))
            values = [kind.read(b, v_at, vector) for vector in range(vectors)]
            for row in range(rows):
                weight = emit_splat(b, F32, emit_load(b, F32.element, b.add(p_at, I64(4 * BLOCK * row))))
                for vector, value in enumerate(values):
                    at = row * vectors + vector
                    acc[at] = emit_fma(b, value, weight, acc[at])
            return acc

        for offset, value in zip(offsets, emit_sum(b, I64(BLOCK), start, step), strict=True):
            b.store(value, b.inttoptr(b.add(sums, I64(offset)), F32.as_pointer()), align=4)
        return sums

    @intrinsic
    def weigh(typingctx: Any, p: Any, v: Any, sums: Any, ahead: Any) -> Any:
        return word(types.void, [types.int64] * 4, emit)

    return weigh


def widest(rows: int, limit: int) -> int:
    """How many vectors a tile of rows takes at a time: 4, 2 or 1, at most `limit`."""
    return next((n for n in (4, 2) if n * rows <= target().sums and limit % n == 0), 1)


def fold_word(sign: str) -> Any:
    """The word for the lane of an integer vector that is < or > all others."""

    @intrinsic
    def apply(typingctx: Any, v: Any) -> Any:
        def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
            return emit_fold(b, args[0], lambda x, y: b.select(b.icmp_signed(sign, x, y), x, y))

        return word(v.element, [v], emit)

    return apply


least, greatest = fold_word("<"), fold_word(">")


@inline
def visible(cells: int, oldest: int, newest: int) -> Any:
    """Which of sixteen cells a row sees."""
    cell = load(i32x16, cells)
    return (cell >= splat(i32x16, int32(oldest))) & (cell <= splat(i32x16, int32(newest)))


@inline
def oldest_of(span: int, sink: int) -> Any:
    """The oldest position that a row sees of a block, which may be one of sinks."""
    return int32(BEFORE_ALL) if sink else load(int32, span)


def sight_word(rows: int) -> Any:
    """The word sight(cells, spans, sink): NOTHING if no row of a tile sees any cell of a block, ALL if every row sees
    every cell."""

    @inline
    def sight(cells: int, spans: int, sink: int) -> int:
        oldest, newest = oldest_of(spans, sink), load(int32, spans + 4)
        furthest, nearest = oldest, newest  # what all rows see is from the last `oldest` to the first `newest`
        for span in range(spans + 8, spans + 8 * rows, 8):
            first, last = oldest_of(span, sink), load(int32, span + 4)
            oldest, furthest = min(oldest, first), max(furthest, first)
            newest, nearest = max(newest, last), min(nearest, last)
        low, high = load(i32x16, cells), load(i32x16, cells)
        for cell in range(16, BLOCK, 16):
            at = load(i32x16, cells + 4 * cell)
            low, high = select(at < low, at, low), select(at > high, at, high)
        lowest, highest = least(low), greatest(high)
        if lowest > newest or highest < oldest:
            return NOTHING
        return ALL if lowest >= furthest and highest <= nearest else SOME

    return sight


@inline
def exp2(v: Any) -> Any:
    """2**v of an f32x16 up to 127, to about one unit in the last place; 0 below -126.5, NaN of NaN.

    v = n + r with |r| <= 1/2 is exact; then the Taylor polynomial of degree 6, and 2**n through the exponent.
    """
    x = select(v < splat(f32x16, -127.0), splat(f32x16, -127.0), v)
    n = rint(x)
    r = x - n
    p = splat(f32x16, 0.00015403530393381608)  # ln(2)^6 / 6!, and so on
    p = fma(p, r, splat(f32x16, 0.0013333558146428443))
    p = fma(p, r, splat(f32x16, 0.009618129107628477))
    p = fma(p, r, splat(f32x16, 0.05550410866482158))
    p = fma(p, r, splat(f32x16, 0.2402265069591007))
    p = fma(p, r, splat(f32x16, 0.6931471805599453))
    p = fma(p, r, splat(f32x16, 1.0))
    return p * bitcast(f32x16, (convert(i32x16, n) + splat(i32x16, 127)) << splat(i32x16, 23))


@inline
def power_of_two(n: Any) -> Any:
    """2**n of a whole number up to 0; 0 below -126."""
    exponent = int32(n) if n > float32(-127.0) else int32(-127)
    return bitcast(float32, int32((exponent + int32(127)) << int32(23)))


def rescale_word(value_dim: int) -> Any:
    """The word rescale(row, factor): the denominator and the sums of a row times a factor."""
    end = row_bytes(value_dim)

    @inline
    def rescale(row: int, factor: float) -> None:
        for at in range(row + DENOMINATOR, row + end, 64):
            store(at, load(f32x16, at) * splat(f32x16, factor))

    return rescale


@inline
def tanh(v: Any) -> Any:
    """tanh of an f32x16, to about 2e-7: 1 - 2 / (e^2v + 1)."""
    one = splat(f32x16, float32(1.0))
    x, most = v * splat(f32x16, float32(2 * LOG2_E)), splat(f32x16, float32(100.0))
    return one - splat(f32x16, float32(2.0)) / (exp2(select(x > most, most, x)) + one)


@inline
def cap_scores(p: int, cap: float) -> None:
    """The scores of a row, no further from 0 than cap: cap * tanh(score / cap) (Bello et al., 2016)."""
    for cell in range(0, BLOCK, 16):
        scores = load(f32x16, p + 4 * cell) * splat(f32x16, float32(1.0) / float32(cap))
        store(p + 4 * cell, tanh(scores) * splat(f32x16, float32(cap)))


def soften_word(value_dim: int, capped: int) -> Any:
    """The word soften(p, cells, oldest, newest, cap, seen, row): scores of a row, `capped` or not, become weights
    relative to its top; where that grows, what was summed before shrinks."""
    rescale = rescale_word(value_dim)

    @inline
    def soften(p: int, cells: int, oldest: int, newest: int, cap: float, seen: int, row: int) -> None:
        if capped:
            cap_scores(p, cap)
        if seen == SOME:
            for cell in range(0, BLOCK, 16):
                here = visible(cells + 4 * cell, oldest, newest)
                store(p + 4 * cell, select(here, load(f32x16, p + 4 * cell), splat(f32x16, MINUS_INFINITY)))
        best = load(f32x16, p)
        for cell in range(16, BLOCK, 16):
            scores = load(f32x16, p + 4 * cell)
            best = select(scores > best, scores, best)
        old = load(float32, row)
        new = max(old, rint(largest(best)))
        base = new if new > MINUS_INFINITY else float32(0.0)
        if new != old:
            store(row, new)
            rescale(row, power_of_two(old - base))
        denominator = load(f32x16, row + DENOMINATOR)
        for cell in range(0, BLOCK, 16):
            weight = exp2(load(f32x16, p + 4 * cell) - splat(f32x16, base))
            store(p + 4 * cell, weight)
            denominator = denominator + weight
        store(row + DENOMINATOR, denominator)

    return soften


def score_block_word(kind: CellType, rows: int, key_dim: int, key_size: int, other_bytes: int) -> Any:
    """The word score_block(q, k, p, ahead): the scores of a block; `other_bytes` of values are asked for meanwhile."""
    panels = widest(rows, 4)
    whole = key_dim if kind.scaled else key_size + key_size % 2  # what a key is padded with is worth nothing
    dimensions, steps = 32 if kind.scaled else whole, 4 // panels * whole // 2
    score, share = score_word(kind, rows, panels, key_dim, dimensions, other_bytes // steps), other_bytes // 4
    panel_bytes, group_bytes = PANEL * kind.head_bytes(key_dim), PANEL * kind.group_bytes
    scaled, groups = kind.scaled, key_dim // 32

    @inline
    def score_block(q: int, k: int, p: int, ahead: int) -> None:
        if scaled:
            for at in range(p, p + 4 * BLOCK * rows, 64):
                store(at, splat(f32x16, float32(0.0)))
            for panel in range(0, 4, panels):
                for group in range(groups):
                    there = ahead + share * panel + share * panels // groups * group
                    score(q + 128 * group, k + panel_bytes * panel + group_bytes * group, p + 64 * panel, there)
        else:
            for panel in range(0, 4, panels):
                score(q, k + panel_bytes * panel, p + 64 * panel, ahead + share * panel)

    return score_block


def weigh_block_word(kind: CellType, rows: int, value_dim: int, other_bytes: int) -> Any:
    """The word weigh_block(p, v, sums, scaled_p, ahead): the weighted values of a block; likewise, of keys."""
    scaled, groups, code_bytes = kind.scaled, value_dim // 32, kind.code_bytes
    vectors = 2 if scaled else widest(rows, value_dim // 16)
    passes = value_dim // 16 // vectors
    share = other_bytes // passes
    weigh = weigh_word(kind, rows, vectors, value_dim, share // BLOCK)
    scale_bytes = kind.scale_bytes(value_dim)

    @inline
    def scale_weights(p: int, scales: int, scaled_p: int) -> None:
        for cell in range(0, BLOCK, 16):
            scale = convert(f32x16, load(f16x16, scales + 2 * cell))
            for at in range(4 * cell, 4 * cell + 4 * BLOCK * rows, 4 * BLOCK):
                store(scaled_p + at, load(f32x16, p + at) * scale)

    @inline
    def weigh_block(p: int, v: int, sums: int, scaled_p: int, ahead: int) -> None:
        if scaled:
            for group in range(groups):
                scale_weights(p, v + 2 * BLOCK * group, scaled_p)
                weigh(scaled_p, v + scale_bytes + code_bytes * group, sums + 128 * group, ahead + share * group)
        else:
            for n in range(passes):
                weigh(p, v + code_bytes // 2 * vectors * n, sums + 64 * vectors * n, ahead + share * n)

    return weigh_block


def attend_word(
    rows: int, key_dim: int, key_size: int, value_dim: int, k_type: CellType, v_type: CellType, capped: int
) -> Any:
    """The word attend(q, q_sink, k, v, cells, spans, cap, table, first, end, sinks, p, state): blocks first .. end.

    The table, int32, says where a sequence's blocks lie, and has an entry behind the last one. `p` is room for the
    weights of a block, twice; the state goes on from what it holds.
    """
    k_block, v_block = BLOCK * k_type.head_bytes(key_dim), BLOCK * v_type.head_bytes(value_dim)
    score_block = score_block_word(k_type, rows, key_dim, key_size, v_block)
    weigh_block = weigh_block_word(v_type, rows, value_dim, k_block)
    sight, soften, stride = sight_word(rows), soften_word(value_dim, capped), row_bytes(value_dim)

    @inline
    def attend(
        q: int,
        q_sink: int,
        k: int,
        v: int,
        cells: int,
        spans: int,
        cap: float,
        table: int,
        first: int,
        end: int,
        sinks: int,
        p: int,
        state: int,
    ) -> None:
        for number in range(first, end):
            block, after = int64(load(int32, table + 4 * number)), int64(load(int32, table + 4 * number + 4))
            here, values = cells + 4 * BLOCK * block, v + v_block * block
            sink = int64(number < sinks)
            queries = q_sink if sink else q
            seen = sight(here, spans, sink)
            if seen == NOTHING:
                continue
            score_block(queries, k + k_block * block, p, values)
            for row in range(rows):
                oldest, newest = oldest_of(spans + 8 * row, sink), load(int32, spans + 8 * row + 4)
                soften(p + 4 * BLOCK * row, here, oldest, newest, cap, seen, state + stride * row)
            weigh_block(p, values, state + SUMS, p + 4 * BLOCK * rows, k + k_block * after)

    return attend


def merge_word(value_dim: int) -> Any:
    """The word merge(whole, part): a row's state joined with that of later cells.

    Cells are joined chunk by chunk in their order, so that it makes no difference which threads computed them.
    """
    end = row_bytes(value_dim)

    @inline
    def merge(whole: int, part: int) -> None:
        old, new = load(float32, whole), load(float32, part)
        top = max(old, new)
        base = top if top > MINUS_INFINITY else float32(0.0)
        keep, add = splat(f32x16, power_of_two(old - base)), splat(f32x16, power_of_two(new - base))
        store(whole, top)
        for at in range(DENOMINATOR, end, 64):
            store(whole + at, fma(load(f32x16, part + at), add, load(f32x16, whole + at) * keep))

    return merge


def sink_word(value_dim: int) -> Any:
    """The word sink(row, score): a row's state with a score more, which is in powers of e and has no value."""
    rescale = rescale_word(value_dim)

    @inline
    def sink(row: int, score: float) -> None:
        weight, old = score * float32(LOG2_E), load(float32, row)
        new = max(old, rint(weight))
        if new != old:
            store(row, new)
            rescale(row, power_of_two(old - new))
        share = extract(exp2(splat(f32x16, weight - new)), 0)
        store(row + DENOMINATOR, load(float32, row + DENOMINATOR) + share)

    return sink


def prepare_word(rows: int, value_dim: int) -> Any:
    """The word prepare(state): a tile that has seen nothing."""
    stride = row_bytes(value_dim)

    @inline
    def prepare(state: int) -> None:
        for at in range(state, state + rows * stride, 64):
            store(at, splat(f32x16, float32(0.0)))
        for row in range(state, state + rows * stride, stride):
            store(row, MINUS_INFINITY)

    return prepare
