"""The online softmax (Milakov and Gimelshein, 2018): turns the scores of a page into weights and updates the running
state.

Scores are base-2 logarithms: a weight is 2^(score - top), where the integer top is near the largest score so far.
Rescaling earlier sums is then a multiplication by a power of two, which is exact.

A row's state has its top (64 bytes), denominator[16] and sums[value_dim]. Its span is [oldest, newest], int32, the
visible positions.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import float32, int32, int64, types

from localinfer.kernels.exponentials import LOG2_E, exp2, power_of_two, tanh
from localinfer.kernels.layout import BIAS_ROW, FIRST_BIAS, PAGE_SIZE, PANEL_KEYS
from quant.jit.emit import I16, I64
from quant.jit.emit_numeric import emit_reduce
from quant.jit.vectors import (
    absolute,
    convert,
    extract,
    f32x16,
    fma,
    i32x16,
    inline,
    intrinsic,
    load,
    lowering,
    mask_from_bits,
    reduce_max,
    rint,
    select,
    splat,
    store,
)

MINUS_INFINITY = float32(float("-inf"))
DENOMINATOR, SUMS = 64, 128  # offsets in a row's state
NOTHING, ALL = (
    0,
    PAGE_SIZE // PANEL_KEYS + 1,
)  # visibility of a page; values in between are numbers of visible panels
OLDEST_POSITION = -(1 << 30)  # older than any position: sinks are always visible


def make_horizontal_reduce(sign: str) -> Any:
    """Make the function that returns the smallest ("<") or largest (">") lane of an integer vector."""

    @intrinsic
    def apply(typingctx: Any, v: Any) -> Any:
        def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
            return emit_reduce(b, args[0], lambda x, y: b.select(b.icmp_signed(sign, x, y), x, y))

        return lowering(v.element, [v], emit)

    return apply


least, greatest = make_horizontal_reduce("<"), make_horizontal_reduce(">")


@inline
def visible(positions: int, oldest: int, newest: int) -> Any:
    """Return the mask of 16 entries that a row attends to."""
    entry = load(i32x16, positions)
    return (entry >= splat(i32x16, int32(oldest))) & (entry <= splat(i32x16, int32(newest)))


@intrinsic
def is_any(typingctx: Any, mask: Any) -> Any:
    """Return whether any lane of a mask of 16 is set."""
    return lowering(types.int64, [mask], lambda b, args: b.zext(b.bitcast(args[0], I16), I64))


@inline
def oldest_visible(span: int, unlimited: int) -> Any:
    """Return the oldest visible position of a page, which may have no limit: a page of attention sinks, or of
    compressed entries."""
    return int32(OLDEST_POSITION) if unlimited else load(int32, span)


def make_page_visibility(rows: int) -> Any:
    """Make page_visibility(positions, spans, unlimited): return ALL if every row of the tile attends to every entry of
    a page, else the number of panels up to the last one with an entry that any row attends to (NOTHING if no row
    attends to any)."""

    @inline
    def page_visibility(positions: int, spans: int, unlimited: int) -> int:
        oldest, newest = oldest_visible(spans, unlimited), load(int32, spans + 4)
        furthest, nearest = oldest, newest  # all rows attend to positions from the last `oldest` to the first `newest`
        for span in range(spans + 8, spans + 8 * rows, 8):
            first, last = oldest_visible(span, unlimited), load(int32, span + 4)
            oldest, furthest = min(oldest, first), max(furthest, first)
            newest, nearest = max(newest, last), min(nearest, last)
        low, high = load(i32x16, positions), load(i32x16, positions)
        for entry in range(16, PAGE_SIZE, 16):
            at = load(i32x16, positions + 4 * entry)
            low, high = select(at < low, at, low), select(at > high, at, high)
        lowest, highest = least(low), greatest(high)
        if lowest >= furthest and highest <= nearest:
            return ALL
        panels = PAGE_SIZE // PANEL_KEYS if lowest <= newest and highest >= oldest else NOTHING
        while panels and not is_any(visible(positions + 4 * PANEL_KEYS * (panels - 1), oldest, newest)):
            panels -= 1
        return panels

    return page_visibility


@inline
def rescale(row: int, value_dim: int, factor: float) -> None:
    """Multiply a row's denominator and sums by a factor."""
    for at in range(row + DENOMINATOR, row + SUMS + 4 * value_dim, 64):
        store(at, load(f32x16, at) * splat(f32x16, factor))


@inline
def cap_scores(p: int, cap: float) -> None:
    """Soft-cap the scores of a row: cap * tanh(score / cap) (Bello et al., 2016)."""
    for entry in range(0, PAGE_SIZE, 16):
        scores = load(f32x16, p + 4 * entry) * splat(f32x16, float32(1.0) / float32(cap))
        store(p + 4 * entry, tanh(scores) * splat(f32x16, float32(cap)))


@inline
def lower_scores(p: int, positions: int, query: int, slope: float) -> None:
    """Lower the scores of a row at position `query` by the distances of the keys, times a slope (ALiBi; Press et al.,
    2021)."""
    for entry in range(0, PAGE_SIZE, 16):
        ahead = convert(f32x16, load(i32x16, positions + 4 * entry) - splat(i32x16, int32(query)))
        distance = splat(f32x16, float32(0.0)) - absolute(ahead)
        store(p + 4 * entry, fma(distance, splat(f32x16, float32(slope)), load(f32x16, p + 4 * entry)))


@inline
def add_biases(p: int, positions: int, query: int, biases: int) -> None:
    """Add to the scores of a row at position `query` the bias of each key's distance (T5; Raffel et al., 2020), from a
    table of `localinfer.kernels.layout.BIAS_ROW` float32. The keys of a panel have adjacent positions."""
    for entry in range(0, PAGE_SIZE, PANEL_KEYS):
        ahead = int64(load(int32, positions + 4 * entry)) - query
        nearest = min(max(ahead, -FIRST_BIAS), BIAS_ROW - PANEL_KEYS - FIRST_BIAS)  # further keys have the same bias
        at = p + 4 * entry
        store(at, load(f32x16, at) + load(f32x16, biases + 4 * (FIRST_BIAS + nearest)))


class Span(NamedTuple):
    """The visible positions of a row, its own, and how much its scores decrease with the distance of a key, or the
    address of the biases that depend on it."""

    oldest: int
    newest: int
    query: int
    slope: float
    biases: int
    chosen: int  # bits of the entries of the page that count, if not all do


def make_softmax_update(capped: int, sloped: int, biased: int, selected: int) -> Any:
    """Make update_softmax(p, positions, span, cap, visible_panels, row, value_dim): turn a row's scores, soft-capped if
    `capped`, lowered by distances if `sloped`, or with a bias for each distance if `biased`, into weights relative to
    its top, and rescale the state if the top grows. If `selected`, only chosen entries have a weight."""

    @inline
    def update_softmax(
        p: int, positions: int, span: Span, cap: float, visible_panels: int, row: int, value_dim: int
    ) -> None:
        if capped:
            cap_scores(p, cap)
        if sloped:
            lower_scores(p, positions, span.query, span.slope)
        if biased:
            add_biases(p, positions, span.query, span.biases)
        if visible_panels != ALL:
            for entry in range(0, PAGE_SIZE, 16):
                here = visible(positions + 4 * entry, span.oldest, span.newest)
                store(p + 4 * entry, select(here, load(f32x16, p + 4 * entry), splat(f32x16, MINUS_INFINITY)))
        if selected:
            for entry in range(0, PAGE_SIZE, 16):
                here = mask_from_bits(types.uint16((span.chosen >> entry) & 0xFFFF))
                store(p + 4 * entry, select(here, load(f32x16, p + 4 * entry), splat(f32x16, MINUS_INFINITY)))
        best = load(f32x16, p)
        for entry in range(16, PAGE_SIZE, 16):
            scores = load(f32x16, p + 4 * entry)
            best = select(scores > best, scores, best)
        old = load(float32, row)
        new = max(old, rint(reduce_max(best)))
        base = new if new > MINUS_INFINITY else float32(0.0)
        if new != old:
            store(row, new)
            rescale(row, value_dim, power_of_two(old - base))
        denominator = load(f32x16, row + DENOMINATOR)
        for entry in range(0, PAGE_SIZE, 16):
            weight = exp2(load(f32x16, p + 4 * entry) - splat(f32x16, base))
            store(p + 4 * entry, weight)
            denominator = denominator + weight
        store(row + DENOMINATOR, denominator)

    return update_softmax


@inline
def merge(state: int, later: int, value_dim: int) -> None:
    """Merge a row's state with that of later entries.

    Chunks are merged in order, so the result does not depend on which threads computed them.
    """
    old, new = load(float32, state), load(float32, later)
    top = max(old, new)
    base = top if top > MINUS_INFINITY else float32(0.0)
    keep, add = splat(f32x16, power_of_two(old - base)), splat(f32x16, power_of_two(new - base))
    store(state, top)
    for at in range(DENOMINATOR, SUMS + 4 * value_dim, 64):
        store(state + at, fma(load(f32x16, later + at), add, load(f32x16, state + at) * keep))


@inline
def add_sink(row: int, value_dim: int, score: float) -> None:
    """Add a score without a value, in base e, to a row's state."""
    weight, old = score * float32(LOG2_E), load(float32, row)
    new = max(old, rint(weight))
    if new != old:
        store(row, new)
        rescale(row, value_dim, power_of_two(old - new))
    weight_sum = extract(exp2(splat(f32x16, weight - new)), 0)
    store(row + DENOMINATOR, load(float32, row + DENOMINATOR) + weight_sum)


def make_initialize(rows: int) -> Any:
    """Make initialize(state, stride): initialize the states of a tile, which are `stride` bytes apart."""

    @inline
    def initialize(state: int, stride: int) -> None:
        for at in range(state, state + rows * stride, 64):
            store(at, splat(f32x16, float32(0.0)))
        for row in range(state, state + rows * stride, stride):
            store(row, MINUS_INFINITY)

    return initialize
