"""The encoder of superblocks whose weight is d * scale * code - dmin * min: Q2_K, Q4_K and Q5_K.

Every group's best scale and min are searched by themselves (`quant.encoders.searches.affine`). Then d and dmin are
chosen so that whole numbers times them come close to these, as much as the error depends on it. Then the whole numbers
of every group are chosen by the error that codes rounded for them really have, and d and dmin once more by least
squares.
"""

from typing import Any

from quant.codes.words import Words
from quant.encoders.encode import GROUPS
from quant.encoders.encoding import HUGE, as_stored, every, fold_word, inverses
from quant.encoders.groups import FREE, NUMBERS, WEIGHTS, importance_word, units_word
from quant.encoders.put import nearest_word
from quant.encoders.searches.affine import SURE, center_word, error_word, search_word, totals_word
from quant.encoders.searches.steps import step_word, whole_word
from quant.jit.vectors import convert, extract, i32x16, inline, maximum, minimum, select, store, u8x16

PART = 0.5  # of what is told in `quant.encoders.objective`: less is cut off where there are mins
# How many steps are tried for d and for dmin, and how far they lie apart, as part of the smallest that might do; how
# far from the nearest whole numbers mins are tried; how often d and dmin are fitted to what was found.
STEPS = {"fast": (5, 0.02, 0, 0), "normal": (15, 0.0143, 1, 1)}


def choose_word(length: int, levels: int, top: int, far: int) -> Any:
    """The word choose(columns, weights, mean, d, dmin, scale, least): the whole scale and min of every group, and the
    error that is left; tried are mins up to `far` from the nearest."""
    totals, error, whole = totals_word(length, levels), error_word(length, levels), whole_word(0, top)

    @inline
    def choose(columns: int, weights: int, mean: Any, d: Any, dmin: Any, scale: Any, least: Any) -> Any:
        to_d, to_scale = inverses(d), inverses(scale)
        nearest = whole((every(0.0) - least - mean) * inverses(dmin))
        best, best_scale, best_min = every(HUGE), every(0.0), every(0.0)
        for i in range(-far, far + 1):
            whole_min = whole(nearest + every(i))
            low = every(0.0) - dmin * whole_min - mean
            total_q, total_qq, total_qx = totals(columns, weights, to_scale, low)
            whole_scale = whole((total_qx - low * total_q) * inverses(total_qq) * to_d)
            off = error(columns, weights, d * whole_scale, low)
            wins = off < best
            best, best_scale = minimum(off, best), select(wins, whole_scale, best_scale)
            best_min = select(wins, whole_min, best_min)
        return best_scale, best_min, best

    return choose


def refit_word(length: int, levels: int, groups: int) -> Any:
    """The word refit(columns, weights, mean, total_w, d, dmin, scale, least): the d and dmin that suit the codes of
    whole scales and mins best; d alone where both cannot be told apart."""
    totals, (sum_of, _) = totals_word(length, levels), fold_word(groups)

    @inline
    def refit(columns: int, weights: int, mean: Any, total_w: Any, d: Any, dmin: Any, scale: Any, least: Any) -> Any:
        low = every(0.0) - dmin * least - mean
        total_q, total_qq, total_qx = totals(columns, weights, inverses(d * scale), low)
        with_d = sum_of(scale * (total_qx + mean * total_q))
        with_dmin = every(0.0) - sum_of(least * mean * total_w)
        d_d, dmin_dmin = sum_of(scale * scale * total_qq), sum_of(least * least * total_w)
        d_dmin = every(0.0) - sum_of(scale * least * total_q)
        size = d_d * dmin_dmin
        determinant = size - d_dmin * d_dmin
        sure = determinant > every(SURE) * size
        over = inverses(select(sure, determinant, every(0.0)))
        new_dmin = select(sure, (d_d * with_dmin - d_dmin * with_d) * over, dmin)
        new_dmin = select(new_dmin > every(0.0), new_dmin, dmin)
        new_d = (with_d - d_dmin * new_dmin) * inverses(d_d)
        return select(new_d > every(0.0), new_d, d), new_dmin

    return refit


def superblock_word(words: Words, top: int, effort: str) -> Any:
    """The word superblock(columns, weights, mean, total_w, scale, least, unit, inverse): d, dmin, and the whole scales
    and mins, given those that would be best without them."""
    length, groups, levels = words.group, words.groups, 2**words.bits
    tried, apart, far, again = STEPS[effort]
    totals, (sum_of, largest_of) = totals_word(length, levels), fold_word(groups)
    step, choose = step_word(groups, 0, top, tried, apart), choose_word(length, levels, top, far)
    refit, whole = refit_word(length, levels, groups), whole_word(0, top)

    @inline
    def begin(
        columns: int, weights: int, mean: Any, total_w: Any, scale: Any, least: Any, unit: Any, inverse: Any
    ) -> Any:
        """d and dmin; a scale makes up for what rounding its min does, so its own rounding is judged after that."""
        total_q, total_qq, _ = totals(columns, weights, inverses(scale), least)
        slope = total_q * inverses(total_qq)
        mins = maximum(every(0.0) - least - mean, every(0.0))
        weight = maximum(total_w - slope * total_q, every(0.0))
        dmin = step(mins, weight, largest_of(mins) * every(1 / top), unit, inverse)
        scale = maximum(scale - slope * (mins - dmin * whole(mins * inverses(dmin))), every(0.0))
        return step(scale, total_qq, largest_of(scale) * every(1 / top), unit, inverse), dmin

    @inline
    def superblock(
        columns: int, weights: int, mean: Any, total_w: Any, scale: Any, least: Any, unit: Any, inverse: Any
    ) -> Any:
        new_d, new_dmin = begin(columns, weights, mean, total_w, scale, least, unit, inverse)
        d, dmin, whole_scale, whole_min, off = new_d, new_dmin, every(0.0), every(0.0), every(HUGE)
        for i in range(again + 1):
            if i > 0:
                scale, least = d * whole_scale, every(0.0) - dmin * whole_min - mean
                new_d, new_dmin = refit(columns, weights, mean, total_w, d, dmin, whole_scale, whole_min)
                new_d, new_dmin = as_stored(new_d, unit, inverse), as_stored(new_dmin, unit, inverse)
            new_scale, new_min, new_off = choose(columns, weights, mean, new_d, new_dmin, scale, least)
            new_off = sum_of(new_off)
            wins = new_off < off
            d, dmin, off = select(wins, new_d, d), select(wins, new_dmin, dmin), minimum(new_off, off)
            whole_scale, whole_min = select(wins, new_scale, whole_scale), select(wins, new_min, whole_min)
        return d * unit, dmin * unit, whole_scale, whole_min

    return superblock


def encoder_of(words: Words, top: int, put_scales: Any, put_codes: Any, effort: str) -> Any:
    """The word encode: see `quant.encoders.encode`. Whole scales and mins are at most `top`.

    put_scales(superblock, d, dmin, scales, mins) writes them; the last are the addresses of a byte for every group.
    """
    length, groups, size = words.group, words.groups, words.superblock_bytes
    in_units, weigh = units_word(length, groups), importance_word(length, groups, PART)
    search = search_word(length, 2**words.bits, True, effort)
    center, superblock = center_word(length), superblock_word(words, top, effort)
    put_nearest = nearest_word(words, put_codes)

    @inline
    def encode(x: int, importance: int, n: int, y: int, scratch: int) -> None:
        columns, weights, numbers = scratch, scratch + WEIGHTS, scratch + NUMBERS
        for first in range(0, n // length, GROUPS):
            count, at = min(GROUPS, n // length - first), 4 * length * first
            unit, inverse = in_units(x + at, count, columns)
            total_w = weigh(importance + at if importance else 0, count, columns, weights)
            mean, low, high = center(columns, weights, total_w)
            low = minimum(low, every(0.0) - mean)
            scale, least = search(columns, weights, mean, total_w, low, maximum(low, high), importance != 0)
            d, dmin, scales, mins = superblock(columns, weights, mean, total_w, scale, least, unit, inverse)
            store(numbers, convert(u8x16, convert(i32x16, scales)))
            store(numbers + GROUPS, convert(u8x16, convert(i32x16, mins)))
            for block in range(count // groups):
                lane = groups * block
                place = y + (first // groups + block) * size
                put_scales(place, extract(d, lane), extract(dmin, lane), numbers + lane, numbers + GROUPS + lane)
                put_nearest(place, x + at + 1024 * block, scratch + FREE)

    return encode
