"""The search for the scale of groups, weight = scale * code, codes from -zero to zero - 1, with the least weighted
error.

A scale may have either sign, so that the longer side of the code range meets the larger side of the weights. The search
tries several scales, which map the largest weight to codes near the outermost ones. Each gives codes. For these codes,
least squares gives the best scale and the error that it removes, without another pass over the weights. The search then
tries some scales near the best one, and finally rounds again with the best scale.

Scales that map the largest weight far beyond the outermost codes are worth trying if a few columns count much more than
others, because the largest weight may not be among them. The same holds for the shorter side of the code range. Not
every code must be tried: one of two in Q4_0 and one of five in Q6_K find all but a thousandth of the gain. Without
importance neither helps.

Sums over the columns of a group, each column times its importance: total_qq of squared codes, total_qx of codes times
weights.
"""

from typing import Any

from quant.encoders.vector_math import broadcast, safe_reciprocals
from quant.jit.vectors import absolute, f32x16, fma, inline, load, maximum, minimum, select

# The largest weight is mapped to codes from a quarter of the range below the outermost code, where the other weights
# may lie closer to codes, to ABOVE or CUT codes beyond it, where it is clipped. MOVES around the best code are tried.
ABOVE, CUT = 1, 5  # without and with known importance
MOVES = (1 / 3, -1 / 3)


def make_code(zero: int) -> Any:
    """Make the inlined function code(x, inverse scale), which returns the nearest codes.

    Floats near 1.5 * 2^23 have no fraction bits, so adding to one rounds.
    """
    whole = 1.5 * 2**23

    @inline
    def code(x: Any, inverse: Any) -> Any:
        near = fma(x, inverse, broadcast(whole))
        return minimum(maximum(near, broadcast(whole - zero)), broadcast(whole + zero - 1)) - broadcast(whole)

    return code


def make_totals(length: int, zero: int) -> Any:
    """Make the inlined function totals(columns, weights, inverse scale): total_qq and total_qx of the nearest codes."""
    code = make_code(zero)

    @inline
    def totals(columns: int, weights: int, inverse: Any) -> Any:
        total_qq, total_qx = broadcast(0.0), broadcast(0.0)
        for column in range(length):
            x = load(f32x16, columns + 64 * column)
            q = code(x, inverse)
            wq = load(f32x16, weights + 64 * column) * q
            total_qq, total_qx = fma(wq, q, total_qq), fma(wq, x, total_qx)
        return total_qq, total_qx

    return totals


def make_error(length: int, zero: int) -> Any:
    """Make the inlined function error(columns, weights, scale): the weighted squared error of the nearest codes."""
    code = make_code(zero)

    @inline
    def error(columns: int, weights: int, scale: Any) -> Any:
        total, inverse, minus = broadcast(0.0), safe_reciprocals(scale), broadcast(0.0) - scale
        for column in range(length):
            x = load(f32x16, columns + 64 * column)
            off = fma(minus, code(x, inverse), x)
            total = fma(load(f32x16, weights + 64 * column) * off, off, total)
        return total

    return error


def make_search(length: int, zero: int) -> Any:
    """Make the inlined function search(columns, weights, known): the best scale of each group.

    known: whether the importance of the columns is known.
    """
    totals = make_totals(length, zero)
    codes = tuple(-float(zero + above) for above in range(-(zero // 4), CUT + 1))
    codes += tuple(zero - 1.0 + above for above in range(-(zero // 4), CUT + 1, zero // 8 + 1))
    n_plain_codes, n_moves = zero // 4 + ABOVE + 1, len(MOVES)

    @inline
    def largest(columns: int) -> Any:
        """Return the weight of largest magnitude of each group, with its sign."""
        result = load(f32x16, columns)
        for column in range(1, length):
            x = load(f32x16, columns + 64 * column)
            result = select(absolute(x) > absolute(result), x, result)
        return result

    @inline
    def search(columns: int, weights: int, known: bool) -> Any:
        over, best, best_scale, best_code = (
            safe_reciprocals(largest(columns)),
            broadcast(0.0),
            broadcast(0.0),
            broadcast(-zero),
        )
        n_tried = len(codes) if known else n_plain_codes
        for i in range(n_tried + n_moves + 1):
            code, inverse = best_code, safe_reciprocals(best_scale)
            if i < n_tried:
                code = broadcast(codes[i])
                inverse = over * code
            elif i < n_tried + n_moves:
                inverse = over * (best_code + broadcast(MOVES[i - n_tried]))
            total_qq, total_qx = totals(columns, weights, inverse)
            scale = total_qx * safe_reciprocals(total_qq)
            gain = scale * total_qx
            wins = gain > best
            best, best_scale, best_code = (
                maximum(gain, best),
                select(wins, scale, best_scale),
                select(wins, code, best_code),
            )
        return best_scale

    return search
