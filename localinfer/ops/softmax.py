"""The online softmax (Milakov and Gimelshein, 2018): scores of a block of cells become weights, beside what earlier
blocks have left.

Scores are in powers of two: a weight is 2^(score - top), where top is a whole number near the largest score so far.
So what was summed before a larger score came is scaled by a power of two, which is exact.

A row's state: 64 bytes with its top, then denominator[16] and sums[value_dim]. Its span: [oldest, newest], int32, the
positions that it sees.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import float32, int32, types

from localinfer.ops.layout import BLOCK, PANEL, row_bytes
from quant.jit.emit import I16, I64
from quant.jit.vectors import (
    bitcast,
    convert,
    emit_fold,
    extract,
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

LOG2_E = 1.4426950408889634
MINUS_INFINITY = float32(float("-inf"))
DENOMINATOR, SUMS = 64, 128  # where they begin in a row's state
NOTHING, ALL = 0, BLOCK // PANEL + 1  # what rows see of a block; in between, of how many of its panels they see some
BEFORE_ALL = -(1 << 30)  # older than any position: sinks are seen from everywhere


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


@inline
def tanh(v: Any) -> Any:
    """tanh of an f32x16, to about 2e-7: 1 - 2 / (e^2v + 1)."""
    one = splat(f32x16, float32(1.0))
    x, most = v * splat(f32x16, float32(2 * LOG2_E)), splat(f32x16, float32(100.0))
    return one - splat(f32x16, float32(2.0)) / (exp2(select(x > most, most, x)) + one)


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


@intrinsic
def is_any(typingctx: Any, mask: Any) -> Any:
    """Whether any lane of a mask of sixteen is set."""
    return word(types.int64, [mask], lambda b, args: b.zext(b.bitcast(args[0], I16), I64))


@inline
def oldest_of(span: int, sink: int) -> Any:
    """The oldest position that a row sees of a block, which may be one of sinks."""
    return int32(BEFORE_ALL) if sink else load(int32, span)


def sight_word(rows: int) -> Any:
    """The word sight(cells, spans, sink): what a tile's rows see of a block. ALL if every row sees every cell; else the
    number of panels up to the last one of which any row sees a cell, and if there is none, NOTHING."""

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
        if lowest >= furthest and highest <= nearest:
            return ALL
        panels = BLOCK // PANEL if lowest <= newest and highest >= oldest else NOTHING
        while panels and not is_any(visible(cells + 4 * PANEL * (panels - 1), oldest, newest)):
            panels -= 1
        return panels

    return sight


def rescale_word(value_dim: int) -> Any:
    """The word rescale(row, factor): the denominator and the sums of a row times a factor."""
    end = row_bytes(value_dim)

    @inline
    def rescale(row: int, factor: float) -> None:
        for at in range(row + DENOMINATOR, row + end, 64):
            store(at, load(f32x16, at) * splat(f32x16, factor))

    return rescale


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
        if seen != ALL:
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
