"""The search for the scale and min of groups, weight = scale * code + min, with the least weighted squared error.

The search tries several spans: that from the group's smallest to its largest weight, widened or narrowed at either end.
Each span gives codes. For these codes, least squares gives the best scale and min and their error, without another pass
over the weights. The search then tries some spans near the best one, and finally rounds again with the best scale and
min. The mean is subtracted from the weights to keep sums small, so `min` here is the min less the mean.

Sums over the columns of a group, each column times its importance: total_w of 1, total_q of codes, total_qq of squared
codes, total_qx of codes times weights.
"""

from typing import Any

from quant.encoders.vector_math import broadcast, safe_reciprocals
from quant.jit.vectors import f32x16, fma, inline, load, maximum, minimum, rint, select, store

MIN_DETERMINANT = 1e-5  # relative to its terms: a smaller determinant may be rounding noise
# The required ratio of gains: a smaller one may be rounding noise, and among equals the first one is what ggml finds.
MIN_IMPROVEMENT = 1 + 1e-5

# By how many code steps a span is narrowed at its two ends. NARROW is only tried with known importance: then a few
# columns may count much more than the outermost weights.
SPANS = tuple((low, high) for low in (0.0, -1.0, 0.5) for high in (0.0, -1.0, 0.5))
NARROW = ((1.25, 0.0), (0.0, 1.25), (1.25, 1.25))
# Changes of the best span at one end, by effort.
MOVES = {"fast": (), "normal": ((0.25, 0.0), (-0.25, 0.0), (0.0, 0.25), (0.0, -0.25))}


def make_center(length: int) -> Any:
    """Make the inlined function center(columns, weights, total_w), which subtracts the mean from the weights.

    It returns the mean, and the smallest and the largest weight less the mean.
    """

    @inline
    def center(columns: int, weights: int, total_w: Any) -> Any:
        total, low, high = broadcast(0.0), load(f32x16, columns), load(f32x16, columns)
        for column in range(length):
            x = load(f32x16, columns + 64 * column)
            total = fma(x, load(f32x16, weights + 64 * column), total)
            low, high = minimum(low, x), maximum(high, x)
        mean = total * safe_reciprocals(total_w)
        for column in range(length):
            store(columns + 64 * column, load(f32x16, columns + 64 * column) - mean)
        return mean, low - mean, high - mean

    return center


def make_code(levels: int) -> Any:
    """Make the inlined function code(steps): the nearest codes of weights that are `steps` scales above the min."""

    @inline
    def code(steps: Any) -> Any:
        return minimum(maximum(rint(steps), broadcast(0.0)), broadcast(levels - 1))

    return code


def make_totals(length: int, levels: int) -> Any:
    """Make the inlined function totals(columns, weights, inverse scale, min).

    It returns total_q, total_qq, total_qx of nearest codes.
    """
    code = make_code(levels)

    @inline
    def totals(columns: int, weights: int, inverse: Any, least: Any) -> Any:
        total_q, total_qq, total_qx = broadcast(0.0), broadcast(0.0), broadcast(0.0)
        shift = broadcast(0.0) - least * inverse
        for column in range(length):
            x, w = load(f32x16, columns + 64 * column), load(f32x16, weights + 64 * column)
            q = code(fma(x, inverse, shift))
            wq = w * q
            total_q = total_q + wq
            total_qq = fma(wq, q, total_qq)
            total_qx = fma(wq, x, total_qx)
        return total_q, total_qq, total_qx

    return totals


def make_error(length: int, levels: int) -> Any:
    """Make the inlined error(columns, weights, scale, min): the weighted squared error of the nearest codes."""
    code = make_code(levels)

    @inline
    def error(columns: int, weights: int, scale: Any, least: Any) -> Any:
        total, inverse, minus = broadcast(0.0), safe_reciprocals(scale), broadcast(0.0) - scale
        for column in range(length):
            above = load(f32x16, columns + 64 * column) - least
            off = fma(minus, code(above * inverse), above)
            total = fma(load(f32x16, weights + 64 * column) * off, off, total)
        return total

    return error


def make_fit(below_zero: bool) -> Any:
    """Make the inlined function fit(mean, total_w, total_q, total_qq, total_qx).

    It returns the scale, the min, and the squared error that they remove. If the min must not be positive but would be,
    or is undetermined because all codes are equal, it is zero.
    """

    @inline
    def fit(mean: Any, total_w: Any, total_q: Any, total_qq: Any, total_qx: Any) -> Any:
        size = total_w * total_qq
        determinant = size - total_q * total_q
        sure = determinant > broadcast(MIN_DETERMINANT) * size
        slope = total_qx * safe_reciprocals(select(sure, determinant, broadcast(0.0)))
        scale, least = total_w * slope, broadcast(0.0) - total_q * slope
        if below_zero:
            free = select(sure, least + mean, broadcast(1.0)) <= broadcast(0.0)
            least = select(free, least, broadcast(0.0) - mean)
            scale = select(free, scale, (total_qx - least * total_q) * safe_reciprocals(total_qq))
            scale = maximum(scale, broadcast(0.0))
        twice = total_qx + total_qx - scale * total_qq - (least + least) * total_q
        return scale, least, scale * twice - least * least * total_w

    return fit


def make_search(length: int, levels: int, below_zero: bool, effort: str) -> Any:
    """Make the inlined function search(columns, weights, mean, total_w, low, high, known).

    It returns the best scale and min per group. low and high are the smallest and the largest weight, less the mean. If
    mins must not be positive, neither is low + mean. known: whether the importance of the columns is known.
    """
    totals, fit, last = make_totals(length, levels), make_fit(below_zero), float(levels - 1)
    n_spans, n_all_spans, n_moves = len(SPANS), len(SPANS + NARROW), len(MOVES[effort])
    lows, highs = (tuple(each[end] / last for each in SPANS + NARROW + MOVES[effort]) for end in (0, 1))

    @inline
    def search(columns: int, weights: int, mean: Any, total_w: Any, low: Any, high: Any, known: bool) -> Any:
        flat = minimum(broadcast(0.0), broadcast(0.0) - mean) if below_zero else broadcast(0.0)
        span, best = high - low, broadcast(0.0) - flat * flat * total_w
        best_scale, best_min, best_low, best_high = broadcast(0.0), flat, broadcast(0.0), broadcast(0.0)
        n_tried = n_all_spans if known else n_spans
        for i in range(n_tried + n_moves + 1):
            at_low, at_high, start, inverse = best_low, best_high, best_min, safe_reciprocals(best_scale)
            if i < n_tried + n_moves:
                number = i if i < n_tried else i - n_tried + n_all_spans
                at_low, at_high = broadcast(lows[number]), broadcast(highs[number])
                if i >= n_tried:
                    at_low, at_high = best_low + at_low, best_high + at_high
                start = low + span * at_low
                inverse = broadcast(last) * safe_reciprocals(span * (broadcast(1.0) - at_low - at_high))
            total_q, total_qq, total_qx = totals(columns, weights, inverse, start)
            scale, least, gain = fit(mean, total_w, total_q, total_qq, total_qx)
            wins = gain > best * broadcast(MIN_IMPROVEMENT)
            best, best_scale, best_min = (
                select(wins, gain, best),
                select(wins, scale, best_scale),
                select(wins, least, best_min),
            )
            best_low, best_high = select(wins, at_low, best_low), select(wins, at_high, best_high)
        return best_scale, best_min

    return search
