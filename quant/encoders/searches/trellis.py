"""The encoder of IQ1_KT to IQ4_KT: the nearest points of a generator, and scales that are multiples of one of the row.

For each group of 8 or 4 columns, only the points of some clusters are compared (`quant.encoders.trellis_points`): the
cluster in which the group's weights lie, in units of the scale, and neighbouring clusters on the other side of the
nearest thresholds, where distances are weighted by the importance of the columns.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import float32, int8, int32, int64, uint8, uint16, uint32

from quant.encoders.encoder import TABLES
from quant.encoders.searches.row_scale import COLUMNS, RowSearch, make_best_scales, make_encode_rows, prepare_nothing
from quant.encoders.searches.scales import (
    make_integer_multiple,
    make_neighbours,
    make_try_neighbours,
    make_try_scales,
)
from quant.encoders.searches.table import make_nearest_entry
from quant.encoders.searches.tiles import FREE, IMPORTANCE, WEIGHTS
from quant.encoders.trellis_points import CLUSTERS, TILE, PointSet
from quant.encoders.vector_math import HUGE, safe_reciprocal
from quant.jit.vectors import (
    absolute,
    bits_from_mask,
    convert,
    f32x16,
    fma,
    i8x16,
    i32x16,
    inline,
    load,
    popcount,
    reduce_max,
    select,
    splat,
    store,
    u32x16,
)
from quant.packing.format_spec import FormatSpec

# In scratch memory: the factors of the values and of their squares for each column, what changes the cluster beyond the
# nearest threshold of a column, the weighted distance to it, and the changes that are tried; a vector of tiles.
LINEAR, SQUARE, CHANGES, DISTANCES, TRIED, BEST_TILES = (FREE + 64 * k for k in range(6))
PRODUCTS, NORMS, VARIANTS = (FREE + 384 + 64 * k for k in range(3))  # a number for each of sixteen groups
SCALES = FREE + 576  # the scales to fit
INDICES, NEW_INDICES = FREE + 640, FREE + 896  # 16 bytes for each of sixteen groups, and for one
INDEX_BYTES = 16

# Limits of weights in units of the scale: an infinite distance to a threshold would lead to clusters that do not exist.
LARGEST_INVERSE, MOST_STEPS = 1e28, 1e6

N_TARGETS, FITS = {"fast": 2, "normal": 3}, {"fast": 0, "normal": 1}


def make_choose_clusters(points: PointSet, changes: int) -> Any:
    """Make the inlined function choose_clusters(scratch, lane, first, s), which returns the cluster of the weights of a
    group from column `first` on, divided by s, and stores `changes` numbers that lead to neighbouring clusters.
    """
    thresholds, bins, columns = points.thresholds, len(points.thresholds) + 1, points.columns
    magnitudes = points.without_signs

    @inline
    def choose_clusters(scratch: int, lane: int, first: int, s: float) -> Any:
        cluster, step, inverse, most = int64(0), int64(1), safe_reciprocal(s), float32(MOST_STEPS)
        inverse = inverse if abs(inverse) < float32(LARGEST_INVERSE) else float32(0.0)
        for i in range(columns):
            x = load(float32, scratch + WEIGHTS + 64 * (first + i) + 4 * lane)
            w = load(float32, scratch + IMPORTANCE + 64 * (first + i) + 4 * lane)
            x = abs(x) if magnitudes else x
            store(scratch + LINEAR + 4 * i, float32(float32(2.0) * s * w * x))
            store(scratch + SQUARE + 4 * i, float32(float32(0.0) - s * s * w))
            t, place, nearest, change = min(max(x * inverse, -most), most), int64(0), float32(HUGE), int64(1)
            for k in range(bins - 1):
                distance = t - float32(thresholds[k])
                is_above = distance > float32(0.0)
                place += 1 if is_above else 0
                if abs(distance) < nearest:
                    nearest, change = abs(distance), int64(-1) if is_above else int64(1)
            cluster += place * step
            store(scratch + CHANGES + 8 * i, change * step)
            store(scratch + DISTANCES + 4 * i, float32(w * nearest * nearest))
            step *= bins
        for number in range(changes):
            chosen, least = int64(0), load(float32, scratch + DISTANCES)
            for i in range(1, columns):
                distance = load(float32, scratch + DISTANCES + 4 * i)
                if distance < least:
                    chosen, least = int64(i), distance
            store(scratch + DISTANCES + 4 * chosen, float32(HUGE))
            store(scratch + TRIED + 8 * number, load(int64, scratch + CHANGES + 8 * chosen))
        return cluster

    return choose_clusters


def make_search_cluster(points: PointSet) -> Any:
    """Make the inlined function search_cluster(tables, cluster, scratch, best, tiles): the gain of the best points so
    far and their tiles, in sixteen lanes, with those of a cluster.
    """
    columns, points_at, n_clusters = points.columns, points.points_at, CLUSTERS * len(points.offsets)

    @inline
    def search_cluster(tables: int, cluster: int, scratch: int, best: Any, tiles: Any) -> Any:
        first, end = load(uint32, tables + 4 * cluster), load(uint32, tables + 4 * cluster + 4)
        values = tables + points_at + 2 * TILE * int64(load(uint32, tables + 4 * n_clusters))
        for tile in range(int64(first), int64(end)):
            total, at = splat(f32x16, float32(0.0)), values + TILE * columns * tile
            for i in range(columns):
                value = convert(f32x16, convert(i32x16, load(i8x16, at + TILE * i)))
                linear = splat(f32x16, load(float32, scratch + LINEAR + 4 * i))
                square = splat(f32x16, load(float32, scratch + SQUARE + 4 * i))
                total = fma(fma(square, value, linear), value, total)
            better = total > best
            best, tiles = select(better, total, best), select(better, splat(u32x16, uint32(tile)), tiles)
        return best, tiles

    return search_cluster


def make_nearest_point(points: PointSet, changes: int) -> Any:
    """Make the inlined function nearest_point(scratch, lane, first, s, variant, index_at), which finds the best point
    for the weights of a group from column `first` on, with the scale s. It stores the index at the address `index_at`
    and returns the sums of weights times values and of squared values, both times the importance.
    """
    choose_clusters, search_cluster = make_choose_clusters(points, changes), make_search_cluster(points)
    columns, points_at, n_clusters = points.columns, points.points_at, CLUSTERS * len(points.offsets)
    magnitudes = points.without_signs

    @inline
    def nearest_point(scratch: int, lane: int, first: int, s: float, variant: int, index_at: int) -> Any:
        tables, best = load(int64, scratch + TABLES), splat(f32x16, float32(-HUGE))
        tiles, cluster = splat(u32x16, uint32(0)), choose_clusters(scratch, lane, first, s) + CLUSTERS * variant
        for subset in range(1 << changes):
            tried = cluster
            for number in range(changes):
                tried += load(int64, scratch + TRIED + 8 * number) if (subset >> number) & 1 else int64(0)
            best, tiles = search_cluster(tables, tried, scratch, best, tiles)
        store(scratch + BEST_TILES, tiles)
        is_best = uint32(bits_from_mask(best == splat(f32x16, reduce_max(best))))
        chosen = int64(popcount(uint32(~is_best & (is_best - uint32(1))))) & int64(15)
        tile = int64(load(uint32, scratch + BEST_TILES + 4 * chosen))
        store(index_at, load(uint16, tables + points_at + 2 * (TILE * tile + chosen)))
        values = tables + points_at + 2 * TILE * int64(load(uint32, tables + 4 * n_clusters)) + TILE * columns * tile
        product, norm = float32(0.0), float32(0.0)
        for i in range(columns):
            value = float32(load(int8, values + TILE * i + chosen))
            x = load(float32, scratch + WEIGHTS + 64 * (first + i) + 4 * lane)
            w = load(float32, scratch + IMPORTANCE + 64 * (first + i) + 4 * lane)
            product += w * value * (abs(x) if magnitudes else x)
            norm += w * value * value
        return product, norm

    return nearest_point


def make_fit(points: PointSet, has_signs: bool, effort: str) -> Any:
    """Make the inlined function fit(scratch, s): see `quant.encoders.searches.scales.make_search`.

    It stores the indices of all groups and, for each of the sixteen lanes, the best variant of the points. If scales of
    either sign can be stored, each variant is tried with s and -s, and the stored number is twice that of the variant,
    plus 1 for -s.
    """
    nearest_point, columns = make_nearest_point(points, points.changes[effort]), points.columns
    groups, signs = COLUMNS // points.columns, 2 if has_signs else 1
    choices = len(points.offsets) * signs

    @inline
    def fit_variant(scratch: int, lane: int, s: float, variant: int) -> Any:
        product, norm = float32(0.0), float32(0.0)
        for group in range(groups):
            at = scratch + NEW_INDICES + 2 * group
            more_product, more_norm = nearest_point(scratch, lane, columns * group, s, variant, at)
            product, norm = product + more_product, norm + more_norm
        return product, norm

    @inline
    def fit(scratch: int, s: Any) -> Any:
        store(scratch + SCALES, s)
        for lane in range(16):
            scale, best = load(float32, scratch + SCALES + 4 * lane), float32(-HUGE)
            for choice in range(choices):
                sign = float32(-1.0) if choice % signs == 1 else float32(1.0)
                product, norm = fit_variant(scratch, lane, sign * scale, choice // signs)
                product *= sign
                gain = scale * (product + product - scale * norm)
                if gain > best:
                    best = gain
                    store(scratch + PRODUCTS + 4 * lane, float32(product))
                    store(scratch + NORMS + 4 * lane, float32(norm))
                    store(scratch + VARIANTS + 4 * lane, int32(choice))
                    for half in range(2):
                        ids = load(int64, scratch + NEW_INDICES + 8 * half)
                        store(scratch + INDICES + INDEX_BYTES * lane + 8 * half, ids)
        norms, zero = load(f32x16, scratch + NORMS), splat(f32x16, float32(0.0))
        return select(norms > zero, load(f32x16, scratch + PRODUCTS) / norms, zero), norms

    return fit


class Multiples(NamedTuple):
    """The multiples of d that scales may be, as inlined functions of vectors: `magnitude` and `multiple` of a
    `RowSearch`, and the neighbours of a multiple. `largest` is the largest magnitude, and `reach` the number of
    neighbours that are tried on either side. If it `has_signs`, the negatives of all multiples can be stored as well.
    """

    magnitude: Any
    multiple: Any
    lower: Any
    higher: Any
    largest: float
    reach: int = 1
    has_signs: bool = False


def make_integer_multiples(largest: int, reach: int = 1, has_signs: bool = False) -> Multiples:
    """Return the integers from 0 to `largest`."""
    multiple = make_integer_multiple(0, largest)
    return Multiples(multiple, multiple, *make_neighbours(multiple, 1), largest, reach, has_signs)


def make_table_multiples(table: Sequence[int]) -> Multiples:
    """Return the numbers of a table, no two of which have the same magnitude."""
    numbers = sorted(table, key=abs)
    sizes = [abs(number) for number in numbers]
    magnitude, multiple, below, above = (
        make_nearest_entry(sizes, f32x16, values)
        for values in (sizes, numbers, [*numbers[:1], *numbers[:-1]], [*numbers[1:], *numbers[-1:]])
    )

    @inline
    def lower(k: Any) -> Any:
        return below(absolute(k))

    @inline
    def higher(k: Any) -> Any:
        return above(absolute(k))

    return Multiples(magnitude, multiple, lower, higher, sizes[-1])


def make_encode_points(
    spec: FormatSpec, points: PointSet, multiples: Multiples, targets: tuple[float, float], store_block: Any,
    effort: str,
) -> Any:  # fmt: skip
    """Make the inlined function encode of `quant.encoders.encoder`.

    Trials map the largest weight of a group of 32 columns to values in the range `targets`. store_block(scratch, block,
    k, first) stores the multiples and INDICES of eight lanes from `first` on.
    """
    magnitude, multiple, lower, higher, largest, reach, has_signs = multiples
    fit = make_fit(points, has_signs, effort)
    target_values = [float(value) for value in np.linspace(*targets, N_TARGETS[effort])]
    divisors = [float(value) for value in np.linspace(0.8 * largest, 1.15 * largest, 16)]

    @inline
    def encode_groups(scratch: int, scales: Any) -> None:
        fit(scratch, scales)

    search = RowSearch(
        find_scales=make_best_scales(make_try_scales(fit, COLUMNS, target_values)),
        prepare=prepare_nothing,
        magnitude=magnitude,
        multiple=multiple,
        try_neighbours=make_try_neighbours(fit, lower, higher, reach),
        encode_groups=encode_groups,
        store_block=store_block,
    )
    return make_encode_rows(spec, search, divisors, FITS[effort])


@inline
def index_of(scratch: int, lane: int, group: int) -> int:
    """Return the index that was chosen for a group of the columns of a lane."""
    return int64(load(uint16, scratch + INDICES + INDEX_BYTES * lane + 2 * group))


@inline
def store_scale_nibbles(address: int, scratch: int, codes: Any, first: int) -> None:
    """Store the four bits of eight lanes of an i32x16 from `first` on: of the first four lanes in the low nibbles of
    four bytes, of the others in the high ones.
    """
    store(scratch + SCALES, codes)
    for group in range(4):
        low = load(int32, scratch + SCALES + 4 * (first + group))
        high = load(int32, scratch + SCALES + 4 * (first + 4 + group))
        store(address + group, uint8(low | (high << int32(4))))


@inline
def store_four_indices(address: int, scratch: int, first: int) -> None:
    """Store four indices of each of eight lanes from `first` on."""
    for lane in range(8):
        store(address + 8 * lane, load(int64, scratch + INDICES + INDEX_BYTES * (first + lane)))


@inline
def store_twelve_bits(block: int, low_at: int, high_at: int, number: int, half: int, index: int) -> None:
    """Store the eight low bits of index `number`, and the next four in the low nibble of byte number % half, or in the
    high one if `number` is not below `half`. Lower numbers are stored first.
    """
    store(block + low_at + number, uint8(index & 255))
    high = (index >> 8) & 15
    if number < half:
        store(block + high_at + number, uint8(high))
    else:
        address = block + high_at + number - half
        store(address, uint8(int64(load(uint8, address)) | (high << 4)))
