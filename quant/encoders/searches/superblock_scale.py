"""The search for the scale of a superblock: its groups' scales or mins are integer multiples of it."""

from typing import Any

from quant.encoders.vector_math import broadcast, make_reductions, round_to_f16, safe_reciprocals
from quant.jit.vectors import inline, maximum, minimum, rint, select


def make_round(lowest: int, top: int) -> Any:
    """Make the inlined function round_clamped(v): the nearest integers from `lowest` to `top`."""

    @inline
    def round_clamped(v: Any) -> Any:
        return minimum(maximum(rint(v), broadcast(lowest)), broadcast(top))

    return round_clamped


def make_superblock_scale(groups: int, lowest: int, top: int, tried: int, spacing: float) -> Any:
    """Make the inlined function step(values, weights, first, unit, inverse): the best of `tried` scales around `first`.

    Candidates have a relative distance of `spacing` and are rounded to float16 as stored. weights are the costs of the
    squared errors of the values.
    """
    (sum_of, _), whole = make_reductions(groups), make_round(lowest, top)

    @inline
    def step(values: Any, weights: Any, first: Any, unit: Any, inverse: Any) -> Any:
        best, least = broadcast(0.0), sum_of(weights * values * values)
        for i in range(tried + 1):
            factor = 1.0 + spacing * (i - 1 - tried // 2) if i else 1.0
            candidate = round_to_f16(first * broadcast(factor), unit, inverse)
            error = candidate * whole(values * safe_reciprocals(candidate)) - values
            cost = sum_of(weights * error * error)
            best, least = select(cost < least, candidate, best), minimum(cost, least)
        return best

    return step
