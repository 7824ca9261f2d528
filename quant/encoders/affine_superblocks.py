"""The encoder of superblocks whose weight is d * scale * code - dmin * min: Q2_K, Q4_K and Q5_K.

The best float scale and min of each group are searched independently (`quant.encoders.searches.affine`). Then d and
dmin are chosen so that integer multiples of them come close to these, weighted by their effect on the error. Then the
integers of each group are chosen by the actual error of the rounded codes, and d and dmin are refitted by least
squares.
"""

from typing import Any

from quant.encoders.encoder import GROUPS
from quant.encoders.groups import FREE, NUMBERS, WEIGHTS, make_normalize, make_weigh
from quant.encoders.nearest_codes import make_store_nearest
from quant.encoders.searches.affine import MIN_DETERMINANT, make_center, make_error, make_search, make_totals
from quant.encoders.searches.superblock_scale import make_round, make_superblock_scale
from quant.encoders.vector_math import HUGE, broadcast, make_reductions, round_to_f16, safe_reciprocals
from quant.jit.vectors import convert, extract, i32x16, inline, maximum, minimum, select, store, u8x16
from quant.packing.format_spec import FormatSpec

EMPHASIS = 0.5  # factor of the fraction in `quant.encoders.objective`: with mins, less is clipped
# For each effort: the number of candidates for d and for dmin and their relative distance, the distance from the
# nearest integer up to which mins are tried, and the number of least-squares fits of d and dmin.
STEPS = {"fast": (5, 0.02, 0, 0), "normal": (15, 0.0143, 1, 1)}


def make_choose(length: int, levels: int, top: int, max_offset: int) -> Any:
    """Make the inlined function choose(columns, weights, mean, d, dmin, scale, least).

    It returns the integer scale and min of each group, and their error. It tries mins up to `max_offset` from the
    nearest integer.
    """
    totals, error, whole = make_totals(length, levels), make_error(length, levels), make_round(0, top)

    @inline
    def choose(columns: int, weights: int, mean: Any, d: Any, dmin: Any, scale: Any, least: Any) -> Any:
        to_d, to_scale = safe_reciprocals(d), safe_reciprocals(scale)
        nearest = whole((broadcast(0.0) - least - mean) * safe_reciprocals(dmin))
        best, best_scale, best_min = broadcast(HUGE), broadcast(0.0), broadcast(0.0)
        for i in range(-max_offset, max_offset + 1):
            whole_min = whole(nearest + broadcast(i))
            low = broadcast(0.0) - dmin * whole_min - mean
            total_q, total_qq, total_qx = totals(columns, weights, to_scale, low)
            whole_scale = whole((total_qx - low * total_q) * safe_reciprocals(total_qq) * to_d)
            off = error(columns, weights, d * whole_scale, low)
            wins = off < best
            best, best_scale = minimum(off, best), select(wins, whole_scale, best_scale)
            best_min = select(wins, whole_min, best_min)
        return best_scale, best_min, best

    return choose


def make_refit(length: int, levels: int, groups: int) -> Any:
    """Make the inlined function refit(columns, weights, mean, total_w, d, dmin, scale, least).

    It returns the least-squares d and dmin for the codes of integer scales and mins. If the system is singular, only d
    is fitted.
    """
    totals, (sum_of, _) = make_totals(length, levels), make_reductions(groups)

    @inline
    def refit(columns: int, weights: int, mean: Any, total_w: Any, d: Any, dmin: Any, scale: Any, least: Any) -> Any:
        low = broadcast(0.0) - dmin * least - mean
        total_q, total_qq, total_qx = totals(columns, weights, safe_reciprocals(d * scale), low)
        with_d = sum_of(scale * (total_qx + mean * total_q))
        with_dmin = broadcast(0.0) - sum_of(least * mean * total_w)
        d_d, dmin_dmin = sum_of(scale * scale * total_qq), sum_of(least * least * total_w)
        d_dmin = broadcast(0.0) - sum_of(scale * least * total_q)
        size = d_d * dmin_dmin
        determinant = size - d_dmin * d_dmin
        sure = determinant > broadcast(MIN_DETERMINANT) * size
        over = safe_reciprocals(select(sure, determinant, broadcast(0.0)))
        new_dmin = select(sure, (d_d * with_dmin - d_dmin * with_d) * over, dmin)
        new_dmin = select(new_dmin > broadcast(0.0), new_dmin, dmin)
        new_d = (with_d - d_dmin * new_dmin) * safe_reciprocals(d_d)
        return select(new_d > broadcast(0.0), new_d, d), new_dmin

    return refit


def make_superblock(spec: FormatSpec, top: int, effort: str) -> Any:
    """Make the inlined function superblock(columns, weights, mean, total_w, scale, least, unit, inverse).

    It returns d, dmin and the integer scales and mins; `scale` and `least` are the best float values of each group.
    """
    length, groups, levels = spec.group_size, spec.n_groups, 2**spec.bits
    tried, spacing, max_offset, n_fits = STEPS[effort]
    totals, (sum_of, largest_of) = make_totals(length, levels), make_reductions(groups)
    step, choose = make_superblock_scale(groups, 0, top, tried, spacing), make_choose(length, levels, top, max_offset)
    refit, whole = make_refit(length, levels, groups), make_round(0, top)

    @inline
    def begin(
        columns: int, weights: int, mean: Any, total_w: Any, scale: Any, least: Any, unit: Any, inverse: Any
    ) -> Any:
        """Return the first d and dmin. A scale can compensate the rounding of its min, so d is chosen after dmin."""
        total_q, total_qq, _ = totals(columns, weights, safe_reciprocals(scale), least)
        slope = total_q * safe_reciprocals(total_qq)
        mins = maximum(broadcast(0.0) - least - mean, broadcast(0.0))
        weight = maximum(total_w - slope * total_q, broadcast(0.0))
        dmin = step(mins, weight, largest_of(mins) * broadcast(1 / top), unit, inverse)
        scale = maximum(scale - slope * (mins - dmin * whole(mins * safe_reciprocals(dmin))), broadcast(0.0))
        return step(scale, total_qq, largest_of(scale) * broadcast(1 / top), unit, inverse), dmin

    @inline
    def superblock(
        columns: int, weights: int, mean: Any, total_w: Any, scale: Any, least: Any, unit: Any, inverse: Any
    ) -> Any:
        new_d, new_dmin = begin(columns, weights, mean, total_w, scale, least, unit, inverse)
        d, dmin, whole_scale, whole_min, off = new_d, new_dmin, broadcast(0.0), broadcast(0.0), broadcast(HUGE)
        for i in range(n_fits + 1):
            if i > 0:
                scale, least = d * whole_scale, broadcast(0.0) - dmin * whole_min - mean
                new_d, new_dmin = refit(columns, weights, mean, total_w, d, dmin, whole_scale, whole_min)
                new_d, new_dmin = round_to_f16(new_d, unit, inverse), round_to_f16(new_dmin, unit, inverse)
            new_scale, new_min, new_off = choose(columns, weights, mean, new_d, new_dmin, scale, least)
            new_off = sum_of(new_off)
            wins = new_off < off
            d, dmin, off = select(wins, new_d, d), select(wins, new_dmin, dmin), minimum(new_off, off)
            whole_scale, whole_min = select(wins, new_scale, whole_scale), select(wins, new_min, whole_min)
        return d * unit, dmin * unit, whole_scale, whole_min

    return superblock


def make_encode(spec: FormatSpec, top: int, store_scales: Any, store_codes: Any, effort: str) -> Any:
    """Make the inlined function encode of `quant.encoders.encoder`. Integer scales and mins are at most `top`.

    store_scales(superblock, d, dmin, scales, mins) stores them; `scales` and `mins` are addresses of one byte for each
    group.
    """
    length, groups, size = spec.group_size, spec.n_groups, spec.superblock_bytes
    normalize, weigh = make_normalize(length, groups), make_weigh(length, groups, EMPHASIS)
    search = make_search(length, 2**spec.bits, True, effort)
    center, superblock = make_center(length), make_superblock(spec, top, effort)
    store_nearest = make_store_nearest(spec, store_codes)

    @inline
    def encode(x: int, importance: int, n: int, y: int, scratch: int) -> None:
        columns, weights, numbers = scratch, scratch + WEIGHTS, scratch + NUMBERS
        for first in range(0, n // length, GROUPS):
            count, at = min(GROUPS, n // length - first), 4 * length * first
            unit, inverse = normalize(x + at, count, columns)
            total_w = weigh(importance + at if importance else 0, count, columns, weights)
            mean, low, high = center(columns, weights, total_w)
            low = minimum(low, broadcast(0.0) - mean)
            scale, least = search(columns, weights, mean, total_w, low, maximum(low, high), importance != 0)
            d, dmin, scales, mins = superblock(columns, weights, mean, total_w, scale, least, unit, inverse)
            store(numbers, convert(u8x16, convert(i32x16, scales)))
            store(numbers + GROUPS, convert(u8x16, convert(i32x16, mins)))
            for block in range(count // groups):
                lane = groups * block
                address = y + (first // groups + block) * size
                store_scales(address, extract(d, lane), extract(dmin, lane), numbers + lane, numbers + GROUPS + lane)
                store_nearest(address, x + at + 1024 * block, scratch + FREE)

    return encode
