"""The search for the step of a superblock: of what its groups' scales, or mins, had better be whole multiples."""

from typing import Any

from quant.encoders.encoding import as_stored, every, fold_word, inverses
from quant.jit.vectors import inline, maximum, minimum, rint, select


def whole_word(lowest: int, top: int) -> Any:
    """The word whole(v): the nearest whole numbers that can be stored."""

    @inline
    def whole(v: Any) -> Any:
        return minimum(maximum(rint(v), every(lowest)), every(top))

    return whole


def step_word(groups: int, lowest: int, top: int, tried: int, apart: float) -> Any:
    """The word step(values, weights, first, unit, inverse): the best of `tried` steps about the first, and this.

    Steps lie `apart` from each other, as a part of the first; they are rounded as they will be stored. weights say what
    a value's squared error costs.
    """
    (sum_of, _), whole = fold_word(groups), whole_word(lowest, top)

    @inline
    def step(values: Any, weights: Any, first: Any, unit: Any, inverse: Any) -> Any:
        best, least = every(0.0), sum_of(weights * values * values)
        for i in range(tried + 1):
            part = 1.0 + apart * (i - 1 - tried // 2) if i else 1.0
            other = as_stored(first * every(part), unit, inverse)
            off = other * whole(values * inverses(other)) - values
            cost = sum_of(weights * off * off)
            best, least = select(cost < least, other, best), minimum(cost, least)
        return best

    return step
