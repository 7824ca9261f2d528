"""The search for the scales of groups: weight = scale * code, codes from -zero to zero - 1, with the least weighted
squared error.

A scale has either sign, so that the larger side of the codes meets the larger side of the weights. Each of several
scales, about those that give the largest weight one of the outermost codes, gives codes; for these codes least squares
gives the best scale and, without another look at the weights, the error that it takes away. The best of all is improved
by rounding again.

Sums over the columns of a group, each column times its importance: total_qq of codes squared, total_qx of codes times
weights.
"""

from typing import Any

from quant.encoders.encoding import every, inverses
from quant.jit.vectors import absolute, f32x16, fma, inline, load, maximum, minimum, rint, select

# How many scales are tried for each sign, and how often codes are improved. The largest weight is given a code from a
# quarter below the outermost, where the others may happen to lie closer to codes, to four above it, where it is cut.
TRIED = {"fast": (10, 1), "normal": (19, 1)}
LESS, MORE = 0.25, 4.0


def code_word(zero: int) -> Any:
    """The word code(x, scale inverse): the nearest codes."""

    @inline
    def code(x: Any, inverse: Any) -> Any:
        return minimum(maximum(rint(x * inverse), every(-zero)), every(zero - 1))

    return code


def totals_word(length: int, zero: int) -> Any:
    """The word totals(columns, weights, scale inverse): total_qq and total_qx of the nearest codes."""
    code = code_word(zero)

    @inline
    def totals(columns: int, weights: int, inverse: Any) -> Any:
        total_qq, total_qx = every(0.0), every(0.0)
        for column in range(length):
            x = load(f32x16, columns + 64 * column)
            q = code(x, inverse)
            wq = load(f32x16, weights + 64 * column) * q
            total_qq, total_qx = fma(wq, q, total_qq), fma(wq, x, total_qx)
        return total_qq, total_qx

    return totals


def error_word(length: int, zero: int) -> Any:
    """The word error(columns, weights, scale): the weighted squared error of the nearest codes."""
    code = code_word(zero)

    @inline
    def error(columns: int, weights: int, scale: Any) -> Any:
        total, inverse, minus = every(0.0), inverses(scale), every(0.0) - scale
        for column in range(length):
            x = load(f32x16, columns + 64 * column)
            off = fma(minus, code(x, inverse), x)
            total = fma(load(f32x16, weights + 64 * column) * off, off, total)
        return total

    return error


def search_word(length: int, zero: int, effort: str) -> Any:
    """The word search(columns, weights): the best scale of every group."""
    totals = totals_word(length, zero)
    tried, again = TRIED[effort]
    less = LESS * zero
    apart = (less + MORE) / (tried - 1)

    @inline
    def largest(columns: int) -> Any:
        """The weight of every group that is farthest from zero."""
        found = load(f32x16, columns)
        for column in range(1, length):
            x = load(f32x16, columns + 64 * column)
            found = select(absolute(x) > absolute(found), x, found)
        return found

    @inline
    def search(columns: int, weights: int) -> Any:
        over, best, best_scale = inverses(largest(columns)), every(0.0), every(0.0)
        for i in range(2 * tried + again):
            inverse = inverses(best_scale)
            if i < 2 * tried:
                moved = apart * (i // 2) - less
                inverse = over * every(zero - 1 + moved if i % 2 else -zero - moved)
            total_qq, total_qx = totals(columns, weights, inverse)
            scale = total_qx * inverses(total_qq)
            gain = scale * total_qx
            best, best_scale = maximum(gain, best), select(gain > best, scale, best_scale)
        return best_scale

    return search
