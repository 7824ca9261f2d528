"""The search for the scale and the min of groups: weight = scale * code + min, with the least weighted squared error.

Each of several spans, the group's own from its smallest to its largest weight, widened or narrowed at either end, gives
codes; for these codes least squares gives the best scale and min and, without another look at the weights, their error.
About the best of all, some more are tried; and what is best then is improved by rounding again. Weights are given less
their mean, which keeps sums small: so `min` is the min less the mean here.

Sums over the columns of a group, each column times its importance: total_w of 1, total_q of codes, total_qq of codes
squared, total_qx of codes times weights.
"""

from typing import Any

from quant.encoders.encoding import every, inverses
from quant.jit.vectors import f32x16, fma, inline, load, maximum, minimum, rint, select, store

SURE = 1e-5  # of the size of a determinant: what is left of a smaller one may be rounding
CLEARLY = 1 + 1e-5  # times better; by less may be rounding, too, and the first of equals is what ggml would find

# By how many steps of the codes a span is narrowed at its two ends; by the larger ones only where a few columns count
# for much more than others, and need not have the outermost weights.
SPANS = tuple((low, high) for low in (0.0, -1.0, 0.5) for high in (0.0, -1.0, 0.5))
NARROW = ((1.25, 0.0), (0.0, 1.25), (1.25, 1.25))
# The best of these is moved at one end; with least effort nothing is.
MOVES = {"fast": (), "normal": ((0.25, 0.0), (-0.25, 0.0), (0.0, 0.25), (0.0, -0.25))}


def center_word(length: int) -> Any:
    """The word center(columns, weights, total_w): takes the mean from weights; returns it, and the ends."""

    @inline
    def center(columns: int, weights: int, total_w: Any) -> Any:
        total, low, high = every(0.0), load(f32x16, columns), load(f32x16, columns)
        for column in range(length):
            x = load(f32x16, columns + 64 * column)
            total = fma(x, load(f32x16, weights + 64 * column), total)
            low, high = minimum(low, x), maximum(high, x)
        mean = total * inverses(total_w)
        for column in range(length):
            store(columns + 64 * column, load(f32x16, columns + 64 * column) - mean)
        return mean, low - mean, high - mean

    return center


def code_word(levels: int) -> Any:
    """The word code(steps): the codes nearest to weights that are so many steps of the scale above the min."""

    @inline
    def code(steps: Any) -> Any:
        return minimum(maximum(rint(steps), every(0.0)), every(levels - 1))

    return code


def totals_word(length: int, levels: int) -> Any:
    """The word totals(columns, weights, scale inverse, min): total_q, total_qq and total_qx of the nearest codes."""
    code = code_word(levels)

    @inline
    def totals(columns: int, weights: int, inverse: Any, least: Any) -> Any:
        total_q, total_qq, total_qx = every(0.0), every(0.0), every(0.0)
        shift = every(0.0) - least * inverse
        for column in range(length):
            x, w = load(f32x16, columns + 64 * column), load(f32x16, weights + 64 * column)
            q = code(fma(x, inverse, shift))
            wq = w * q
            total_q = total_q + wq
            total_qq = fma(wq, q, total_qq)
            total_qx = fma(wq, x, total_qx)
        return total_q, total_qq, total_qx

    return totals


def error_word(length: int, levels: int) -> Any:
    """The word error(columns, weights, scale, min): the weighted squared error of the nearest codes."""
    code = code_word(levels)

    @inline
    def error(columns: int, weights: int, scale: Any, least: Any) -> Any:
        total, inverse, minus = every(0.0), inverses(scale), every(0.0) - scale
        for column in range(length):
            above = load(f32x16, columns + 64 * column) - least
            off = fma(minus, code(above * inverse), above)
            total = fma(load(f32x16, weights + 64 * column) * off, off, total)
        return total

    return error


def fit_word(below_zero: bool) -> Any:
    """The word fit(mean, total_w, total_q, total_qq, total_qx): scale, min, and the squared error that they take away.

    Where the min must be below zero and would not be, or is not known because all codes are alike, it is zero.
    """

    @inline
    def fit(mean: Any, total_w: Any, total_q: Any, total_qq: Any, total_qx: Any) -> Any:
        size = total_w * total_qq
        determinant = size - total_q * total_q
        sure = determinant > every(SURE) * size
        slope = total_qx * inverses(select(sure, determinant, every(0.0)))
        scale, least = total_w * slope, every(0.0) - total_q * slope
        if below_zero:
            free = select(sure, least + mean, every(1.0)) <= every(0.0)
            least = select(free, least, every(0.0) - mean)
            scale = select(free, scale, (total_qx - least * total_q) * inverses(total_qq))
            scale = maximum(scale, every(0.0))
        twice = total_qx + total_qx - scale * total_qq - (least + least) * total_q
        return scale, least, scale * twice - least * least * total_w

    return fit


def search_word(length: int, levels: int, below_zero: bool, effort: str) -> Any:
    """The word search(columns, weights, mean, total_w, low, high, known): the best scale and min of every group.

    low and high are the smallest and the largest weight, less the mean; where mins are below zero, low + mean is, too.
    known: whether columns count differently.
    """
    totals, fit, last = totals_word(length, levels), fit_word(below_zero), float(levels - 1)
    few, spans, moves = len(SPANS), len(SPANS + NARROW), len(MOVES[effort])
    lows, highs = (tuple(each[end] / last for each in SPANS + NARROW + MOVES[effort]) for end in (0, 1))

    @inline
    def search(columns: int, weights: int, mean: Any, total_w: Any, low: Any, high: Any, known: bool) -> Any:
        flat = minimum(every(0.0), every(0.0) - mean) if below_zero else every(0.0)
        span, best = high - low, every(0.0) - flat * flat * total_w
        best_scale, best_min, best_low, best_high = every(0.0), flat, every(0.0), every(0.0)
        tried = spans if known else few
        for i in range(tried + moves + 1):
            at_low, at_high, start, inverse = best_low, best_high, best_min, inverses(best_scale)
            if i < tried + moves:
                number = i if i < tried else i - tried + spans
                at_low, at_high = every(lows[number]), every(highs[number])
                if i >= tried:
                    at_low, at_high = best_low + at_low, best_high + at_high
                start = low + span * at_low
                inverse = every(last) * inverses(span * (every(1.0) - at_low - at_high))
            total_q, total_qq, total_qx = totals(columns, weights, inverse, start)
            scale, least, gain = fit(mean, total_w, total_q, total_qq, total_qx)
            wins = gain > best * every(CLEARLY)
            best, best_scale, best_min = (
                select(wins, gain, best),
                select(wins, scale, best_scale),
                select(wins, least, best_min),
            )
            best_low, best_high = select(wins, at_low, best_low), select(wins, at_high, best_high)
        return best_scale, best_min

    return search
