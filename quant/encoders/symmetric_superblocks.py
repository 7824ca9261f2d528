"""The encoder of superblocks whose weight is d * scale * (code - zero): Q3_K and Q6_K.

The best float scale of each group is searched independently (`quant.encoders.searches.symmetric`). Then d is chosen so
that integer multiples of it come close to these scales, weighted by their effect on the error. Then the integer scale
of each group is chosen by the actual error of the rounded codes, and d is refitted by least squares.
"""

from typing import Any

from quant.encoders.encoder import GROUPS
from quant.encoders.groups import FREE, NUMBERS, WEIGHTS, make_normalize, make_weigh
from quant.encoders.nearest_codes import make_store_nearest
from quant.encoders.searches.superblock_scale import make_round, make_superblock_scale
from quant.encoders.searches.symmetric import make_error, make_search, make_totals
from quant.encoders.vector_math import HUGE, broadcast, make_reductions, round_to_f16, safe_reciprocals
from quant.jit.vectors import convert, extract, i8x16, i32x16, inline, minimum, select, store
from quant.packing.format_spec import FormatSpec

# For each effort: the number of candidates for d and their relative distance, the distance from the nearest integer up
# to which scales are tried, and the number of least-squares fits of d.
STEPS = {"fast": (5, 0.01, 0, 0), "normal": (15, 0.0057, 1, 1)}


def make_choose(length: int, zero: int, limit: int, max_offset: int) -> Any:
    """Make the inlined function choose(columns, weights, d, scale): the integer scale of each group, and its error."""
    error, whole = make_error(length, zero), make_round(-limit, limit - 1)

    @inline
    def choose(columns: int, weights: int, d: Any, scale: Any) -> Any:
        nearest, best, best_scale = whole(scale * safe_reciprocals(d)), broadcast(HUGE), broadcast(0.0)
        for i in range(-max_offset, max_offset + 1):
            whole_scale = whole(nearest + broadcast(i))
            off = error(columns, weights, d * whole_scale)
            best, best_scale = minimum(off, best), select(off < best, whole_scale, best_scale)
        return best_scale, best

    return choose


def make_superblock(spec: FormatSpec, limit: int, effort: str) -> Any:
    """Make the inlined function superblock(columns, weights, scale, unit, inverse).

    It returns d and the integer scales; `scale` is the best float scale of each group.
    """
    length, groups, zero = spec.group_size, spec.n_groups, spec.zero_point
    tried, spacing, max_offset, n_fits = STEPS[effort]
    totals, (sum_of, largest_of) = make_totals(length, zero), make_reductions(groups)
    step = make_superblock_scale(groups, -limit, limit - 1, tried, spacing)
    choose = make_choose(length, zero, limit, max_offset)

    @inline
    def begin(columns: int, weights: int, scale: Any, unit: Any, inverse: Any) -> Any:
        """Return the first d, such that the scale farthest from zero is about -limit * d."""
        total_qq, _ = totals(columns, weights, safe_reciprocals(scale))
        high, low = largest_of(scale), largest_of(broadcast(0.0) - scale)
        return step(
            scale, total_qq, select(high > low, broadcast(0.0) - high, low) * broadcast(1 / limit), unit, inverse
        )

    @inline
    def superblock(columns: int, weights: int, scale: Any, unit: Any, inverse: Any) -> Any:
        new_d = begin(columns, weights, scale, unit, inverse)
        d, whole_scale, off = new_d, broadcast(0.0), broadcast(HUGE)
        for i in range(n_fits + 1):
            if i > 0:
                scale = d * whole_scale
                total_qq, total_qx = totals(columns, weights, safe_reciprocals(scale))
                new_d = sum_of(whole_scale * total_qx) * safe_reciprocals(sum_of(whole_scale * whole_scale * total_qq))
                new_d = round_to_f16(new_d, unit, inverse)
            new_scale, new_off = choose(columns, weights, new_d, scale)
            new_off = sum_of(new_off)
            wins = new_off < off
            d, whole_scale = select(wins, new_d, d), select(wins, new_scale, whole_scale)
            off = minimum(new_off, off)
        return d * unit, whole_scale

    return superblock


def make_encode(spec: FormatSpec, limit: int, store_scales: Any, store_codes: Any, effort: str) -> Any:
    """Make the inlined function encode of `quant.encoders.encoder`. Integer scales range from -limit to limit - 1.

    store_scales(superblock, d, scales) stores them; `scales` is the address of one signed byte for each group.
    """
    length, groups, size = spec.group_size, spec.n_groups, spec.superblock_bytes
    normalize, weigh = make_normalize(length, groups), make_weigh(length, groups)
    search, superblock = make_search(length, spec.zero_point), make_superblock(spec, limit, effort)
    store_nearest = make_store_nearest(spec, store_codes)

    @inline
    def encode(x: int, importance: int, n: int, y: int, scratch: int) -> None:
        columns, weights, numbers = scratch, scratch + WEIGHTS, scratch + NUMBERS
        for first in range(0, n // length, GROUPS):
            count, at = min(GROUPS, n // length - first), 4 * length * first
            unit, inverse = normalize(x + at, count, columns)
            weigh(importance + at if importance else 0, count, columns, weights)
            d, scales = superblock(columns, weights, search(columns, weights, importance != 0), unit, inverse)
            store(numbers, convert(i8x16, convert(i32x16, scales)))
            for block in range(count // groups):
                lane = groups * block
                address = y + (first // groups + block) * size
                store_scales(address, extract(d, lane), numbers + lane)
                store_nearest(address, x + at + 1024 * block, scratch + FREE)

    return encode
