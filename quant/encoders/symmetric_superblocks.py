"""The encoder of superblocks whose weight is d * scale * (code - zero): Q3_K and Q6_K.

Every group's best scale is searched by itself (`quant.encoders.searches.symmetric`). Then d is chosen so that whole
numbers times it come close to these, as much as the error depends on it. Then the whole numbers of every group are
chosen by the error that codes rounded for them really have, and d once more by least squares.
"""

from typing import Any

from quant.codes.words import Words
from quant.encoders.encode import GROUPS
from quant.encoders.encoding import HUGE, as_stored, every, fold_word, inverses
from quant.encoders.groups import FREE, NUMBERS, WEIGHTS, importance_word, units_word
from quant.encoders.put import nearest_word
from quant.encoders.searches.steps import step_word, whole_word
from quant.encoders.searches.symmetric import error_word, search_word, totals_word
from quant.jit.vectors import convert, extract, i8x16, i32x16, inline, minimum, select, store

# How many values are tried for d, and how far they lie apart; how far from the nearest whole number scales are tried;
# how often d is fitted to what was found.
STEPS = {"fast": (5, 0.01, 0, 0), "normal": (15, 0.0057, 1, 1)}


def choose_word(length: int, zero: int, limit: int, wide: int) -> Any:
    """The word choose(columns, weights, d, scale): the whole scale of every group, and the error that is left."""
    error, whole = error_word(length, zero), whole_word(-limit, limit - 1)

    @inline
    def choose(columns: int, weights: int, d: Any, scale: Any) -> Any:
        nearest, best, best_scale = whole(scale * inverses(d)), every(HUGE), every(0.0)
        for i in range(-wide, wide + 1):
            whole_scale = whole(nearest + every(i))
            off = error(columns, weights, d * whole_scale)
            best, best_scale = minimum(off, best), select(off < best, whole_scale, best_scale)
        return best_scale, best

    return choose


def superblock_word(words: Words, limit: int, effort: str) -> Any:
    """The word superblock(columns, weights, scale, unit, inverse): d and the whole scales, given those that would be
    best without them."""
    length, groups, zero = words.group, words.groups, words.zero
    tried, apart, wide, again = STEPS[effort]
    totals, (sum_of, largest_of) = totals_word(length, zero), fold_word(groups)
    step = step_word(groups, -limit, limit - 1, tried, apart)
    choose = choose_word(length, zero, limit, wide)

    @inline
    def begin(columns: int, weights: int, scale: Any, unit: Any, inverse: Any) -> Any:
        """d, such that the scale farthest from zero is about -limit times it."""
        total_qq, _ = totals(columns, weights, inverses(scale))
        high, low = largest_of(scale), largest_of(every(0.0) - scale)
        return step(scale, total_qq, select(high > low, every(0.0) - high, low) * every(1 / limit), unit, inverse)

    @inline
    def superblock(columns: int, weights: int, scale: Any, unit: Any, inverse: Any) -> Any:
        new_d = begin(columns, weights, scale, unit, inverse)
        d, whole_scale, off = new_d, every(0.0), every(HUGE)
        for i in range(again + 1):
            if i > 0:
                scale = d * whole_scale
                total_qq, total_qx = totals(columns, weights, inverses(scale))
                new_d = sum_of(whole_scale * total_qx) * inverses(sum_of(whole_scale * whole_scale * total_qq))
                new_d = as_stored(new_d, unit, inverse)
            new_scale, new_off = choose(columns, weights, new_d, scale)
            new_off = sum_of(new_off)
            wins = new_off < off
            d, whole_scale = select(wins, new_d, d), select(wins, new_scale, whole_scale)
            off = minimum(new_off, off)
        return d * unit, whole_scale

    return superblock


def encoder_of(words: Words, limit: int, put_scales: Any, put_codes: Any, effort: str) -> Any:
    """The word encode: see `quant.encoders.encode`. Whole scales are from -limit to limit - 1.

    put_scales(superblock, d, scales) writes them; the last is the address of a signed byte for every group.
    """
    length, groups, size = words.group, words.groups, words.superblock_bytes
    in_units, weigh = units_word(length, groups), importance_word(length, groups)
    search, superblock = search_word(length, words.zero), superblock_word(words, limit, effort)
    put_nearest = nearest_word(words, put_codes)

    @inline
    def encode(x: int, importance: int, n: int, y: int, scratch: int) -> None:
        columns, weights, numbers = scratch, scratch + WEIGHTS, scratch + NUMBERS
        for first in range(0, n // length, GROUPS):
            count, at = min(GROUPS, n // length - first), 4 * length * first
            unit, inverse = in_units(x + at, count, columns)
            weigh(importance + at if importance else 0, count, columns, weights)
            d, scales = superblock(columns, weights, search(columns, weights, importance != 0), unit, inverse)
            store(numbers, convert(i8x16, convert(i32x16, scales)))
            for block in range(count // groups):
                lane = groups * block
                place = y + (first // groups + block) * size
                put_scales(place, extract(d, lane), numbers + lane)
                put_nearest(place, x + at + 1024 * block, scratch + FREE)

    return encode
