"""The search for the scales of groups: weight = scale * code, codes from -zero to zero - 1, with the least weighted
squared error.

A scale has either sign, so that the larger side of the codes meets the larger side of the weights. Each of several
scales, which give the largest weight a code about the outermost ones, gives codes; for these codes least squares gives
the best scale and, without another look at the weights, the error that it takes away. About the best of all, some more
are tried; and what is best then is improved by rounding again.

Scales far from the outermost codes are worth trying where a few columns count for much more than others, and need not
have the largest weight; so is the smaller side of the codes for it, though not with every code: one of two in Q4_0, one
of five in Q6_K find all but a thousandth of what all find. Where nothing is known of the columns neither hardly ever
finds anything.

Sums over the columns of a group, each column times its importance: total_qq of codes squared, total_qx of codes times
weights.
"""

from typing import Any

from quant.encoders.encoding import every, inverses
from quant.jit.vectors import absolute, f32x16, fma, inline, load, maximum, minimum, select

# The largest weight is given codes from a quarter of them below the outermost, where the others may happen to lie
# closer to codes, to so many above it, where it is cut; one code apart, and then so far to either side of the best.
ABOVE, CUT = 1, 5  # where nothing is known of the columns, and where it is
MOVES = (1 / 3, -1 / 3)


def code_word(zero: int) -> Any:
    """The word code(x, scale inverse): the nearest codes.

    Numbers about 1.5 * 2^23 have no fraction, so what is added to one is rounded.
    """
    whole = 1.5 * 2**23

    @inline
    def code(x: Any, inverse: Any) -> Any:
        near = fma(x, inverse, every(whole))
        return minimum(maximum(near, every(whole - zero)), every(whole + zero - 1)) - every(whole)

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


def search_word(length: int, zero: int) -> Any:
    """The word search(columns, weights, known): the best scale of every group; whether columns count differently."""
    totals = totals_word(length, zero)
    codes = tuple(-float(zero + above) for above in range(-(zero // 4), CUT + 1))
    codes += tuple(zero - 1.0 + above for above in range(-(zero // 4), CUT + 1, zero // 8 + 1))
    few, moves = zero // 4 + ABOVE + 1, len(MOVES)

    @inline
    def largest(columns: int) -> Any:
        """The weight of every group that is farthest from zero."""
        found = load(f32x16, columns)
        for column in range(1, length):
            x = load(f32x16, columns + 64 * column)
            found = select(absolute(x) > absolute(found), x, found)
        return found

    @inline
    def search(columns: int, weights: int, known: bool) -> Any:
        over, best, best_scale, best_code = inverses(largest(columns)), every(0.0), every(0.0), every(-zero)
        tried = len(codes) if known else few
        for i in range(tried + moves + 1):
            code, inverse = best_code, inverses(best_scale)
            if i < tried:
                code = every(codes[i])
                inverse = over * code
            elif i < tried + moves:
                inverse = over * (best_code + every(MOVES[i - tried]))
            total_qq, total_qx = totals(columns, weights, inverse)
            scale = total_qx * inverses(total_qq)
            gain = scale * total_qx
            wins = gain > best
            best, best_scale, best_code = (
                maximum(gain, best),
                select(wins, scale, best_scale),
                select(wins, code, best_code),
            )
        return best_scale

    return search
