"""The search for the scales of groups that are integer multiples of one number d per superblock.

The search works with trials. A trial is a scale, the codes that are nearest under it, and two numbers that give the
squared error of these codes under any other scale s:

    error(s) = sum importance * (weight - s * code)**2 = const - gain(s),   gain(s) = s * (2 * ideal - s) * norm,
    norm = sum importance * code**2,   ideal = sum importance * weight * code / norm

so `ideal` is the best scale for these codes. Of several trials, the best one for a scale s has the largest gain. Trials
are stored in scratch memory as two vectors each: ideal and norm of 16 groups.

An inlined function multiple(t) defines the allowed multiples: it returns the one nearest to t.
"""

from collections.abc import Sequence
from typing import Any

from numba import float32

from quant.encoders.searches.tiles import TRIALS, signed_absmax
from quant.jit.vectors import (
    absolute,
    concat,
    convert,
    extract,
    f16x16,
    f32x8,
    f32x16,
    inline,
    insert,
    load,
    make_constant,
    make_shuffle,
    maximum,
    minimum,
    reduce_sum,
    rint,
    select,
    splat,
    store,
)

first_eight, second_eight = make_shuffle(range(8)), make_shuffle(range(8, 16))
LARGEST_HALF, LARGEST = 65504.0, 3e38
ROUNDS = {"fast": 0, "normal": 1}  # of `refine`


def make_integer_multiple(least: int, most: int) -> Any:
    """Make the inlined function multiple(t) for all integers of a range."""

    @inline
    def multiple(t: Any) -> Any:
        return minimum(maximum(rint(t), splat(f32x16, float32(least))), splat(f32x16, float32(most)))

    return multiple


def make_odd_multiple(least: int, most: int) -> Any:
    """Make the inlined function multiple(t) for the odd numbers from `least` to `most`."""
    first, last = float32(least // 2), float32(most // 2)

    @inline
    def multiple(t: Any) -> Any:
        one, half = splat(f32x16, float32(1.0)), splat(f32x16, float32(0.5))
        which = minimum(maximum(rint((t - one) * half), splat(f32x16, first)), splat(f32x16, last))
        return which + which + one

    return multiple


@inline
def store_trial(trials: int, number: int, ideal: Any, norm: Any) -> None:
    """Store a trial of 16 groups."""
    store(trials + 128 * number, ideal)
    store(trials + 128 * number + 64, norm)


@inline
def load_trial(trials: int, number: int) -> Any:
    """Return ideal and norm of a trial."""
    return load(f32x16, trials + 128 * number), load(f32x16, trials + 128 * number + 64)


@inline
def gain(s: Any, ideal: Any, norm: Any) -> Any:
    """Return the reduction of the squared error relative to all weights being zero."""
    return s * (ideal + ideal - s) * norm


@inline
def round_to_f16(v: Any) -> Any:
    """Round scales to float16, clamped to the finite range."""
    limit = splat(f32x16, float32(LARGEST_HALF))
    near = maximum(minimum(v, limit), splat(f32x16, float32(-LARGEST_HALF)))
    return convert(f32x16, convert(f16x16, near))


@inline
def ideal_trial(trials: int, count: int) -> Any:
    """Return the scale with the largest gain of all trials, and the norm of its trial, for each of 16 groups."""
    s, norm_of_best, best = splat(f32x16, float32(0.0)), splat(f32x16, float32(0.0)), splat(f32x16, float32(0.0))
    for number in range(count):
        ideal, norm = load_trial(trials, number)
        new_gain = gain(ideal, ideal, norm)
        better = new_gain > best
        s, norm_of_best, best = select(better, ideal, s), select(better, norm, norm_of_best), maximum(new_gain, best)
    return s, norm_of_best


@inline
def ideal_scales(trials: int, count: int) -> Any:
    """Return the scale with the largest gain of all trials, for each of 16 groups."""
    s, _ = ideal_trial(trials, count)
    return s


@inline
def best_multiples(multiple: Any, d: Any, trials: int, count: int) -> Any:
    """Return the multiple of d with the largest gain in any trial, for each of 16 groups."""
    k, best = multiple(splat(f32x16, float32(0.0))), splat(f32x16, float32(-LARGEST))
    for number in range(count):
        ideal, norm = load_trial(trials, number)
        tried = multiple(ideal / d)
        new_gain = gain(d * tried, ideal, norm)
        k, best = select(new_gain > best, tried, k), maximum(new_gain, best)
    return k


@inline
def signed_absmax_of_lanes(v: Any, first: int, count: int) -> Any:
    """Return the value of largest magnitude, with its sign, of some lanes."""
    result = extract(v, first)
    for lane in range(first + 1, first + count):
        value = extract(v, lane)
        if abs(value) > abs(result):
            result = value
    return result


@inline
def argmax_lane(v: Any) -> Any:
    """Return the index of the first lane with the largest value."""
    largest, result = extract(v, 0), 0
    for lane in range(1, 16):
        value = extract(v, lane)
        if value > largest:
            largest, result = value, lane
    return result


def make_choose_d(multiple: Any, divisors: Sequence[float], groups: int) -> Any:
    """Make the inlined function choose_d(ideal, trials, count).

    It returns d in half precision for every group, equal in a superblock. It tries sixteen candidates, the largest
    ideal scale of the superblock over each divisor, and takes the largest gain.
    """
    divided = make_constant(f32x16, [1 / divisor for divisor in divisors])

    @inline
    def choose_d(ideal: Any, trials: int, count: int) -> Any:
        chosen = ideal
        for first in range(0, 16, groups):
            largest = splat(f32x16, signed_absmax_of_lanes(ideal, first, groups))
            d = round_to_f16(largest * divided())  # one candidate per lane
            inverse, gains = splat(f32x16, float32(1.0)) / d, splat(f32x16, float32(0.0))
            for group in range(first, first + groups):
                best = splat(f32x16, float32(-LARGEST))
                for number in range(count):
                    address = trials + 128 * number + 4 * group
                    wanted, norm = splat(f32x16, load(float32, address)), splat(f32x16, load(float32, address + 64))
                    best = maximum(best, gain(multiple(wanted * inverse) * d, wanted, norm))
                gains = gains + best
            best_d = extract(d, argmax_lane(gains))
            for group in range(first, first + groups):
                chosen = insert(chosen, group, best_d)
        return chosen

    return choose_d


def make_neighbours(multiple: Any, step: int) -> tuple[Any, Any]:
    """Make the inlined functions lower(k) and higher(k), the multiples at the distance `step`."""
    distance = float32(step)

    @inline
    def lower(k: Any) -> Any:
        return multiple(k - splat(f32x16, distance))

    @inline
    def higher(k: Any) -> Any:
        return multiple(k + splat(f32x16, distance))

    return lower, higher


def make_try_neighbours(fit: Any, lower: Any, higher: Any, reach: int = 1) -> Any:
    """Make the inlined function try_neighbours(scratch, d, k), one lane for each group: the best of every k and its
    neighbours, and two numbers. The sum of the first ones over the sum of the second ones is the best d for some groups
    together. lower(k) and higher(k) are the next neighbours; `reach` of them are tried on either side.
    """

    @inline
    def try_neighbours(scratch: int, d: Any, k: Any) -> Any:
        tried, best = k, splat(f32x16, float32(-LARGEST))
        above, below = best, best
        for _ in range(reach):
            tried = lower(tried)
        for _ in range(2 * reach + 1):
            ideal, norm = fit(scratch, d * tried)
            new_gain = gain(d * tried, ideal, norm)
            better = new_gain > best
            k, best = select(better, tried, k), maximum(new_gain, best)
            above = select(better, tried * ideal * norm, above)
            below = select(better, tried * tried * norm, below)
            tried = higher(tried)
        return k, above, below

    return try_neighbours


def make_refine(fit: Any, multiple: Any, step: int, groups: int) -> Any:
    """Make the inlined function refine(scratch, d, k), which improves d and k of the scales d * k, one lane per group.

    It tries the neighbours of every k with the scales as they will be stored, and then takes the d, in half precision,
    that is best for all groups of a superblock together.
    """
    sum_of, try_neighbours = make_superblock_sum(groups), make_try_neighbours(fit, *make_neighbours(multiple, step))

    @inline
    def refine(scratch: int, d: Any, k: Any) -> Any:
        k, above, below = try_neighbours(scratch, d, k)
        above, below, zero = sum_of(above), sum_of(below), splat(f32x16, float32(0.0))
        return round_to_f16(select(below > zero, above / below, zero)), k

    return refine


def make_superblock_sum(groups: int) -> Any:
    """Return the inlined function that adds the lanes of each superblock of a vector.

    A lane holds a value per group, so a superblock has `groups` lanes, 8 or 16, of the vector's 16. The sum is in each
    of these lanes.
    """

    @inline
    def of_eights(v: Any) -> Any:
        return concat(splat(f32x8, reduce_sum(first_eight(v))), splat(f32x8, reduce_sum(second_eight(v))))

    @inline
    def of_sixteen(v: Any) -> Any:
        return splat(f32x16, reduce_sum(v))

    return {8: of_eights, 16: of_sixteen}[groups]


def make_try_scales(fit: Any, group: int, targets: Sequence[float]) -> Any:
    """Make the inlined function try_scales(scratch, trials).

    It stores one trial per target code, to which it maps the largest magnitude of each group, and returns the number
    of trials.
    """
    codes, count = tuple(float(end) for end in targets), len(targets)

    @inline
    def try_scales(scratch: int, trials: int) -> Any:
        most = absolute(signed_absmax(scratch, group))
        for number in range(count):
            ideal, norm = fit(scratch, most / splat(f32x16, float32(codes[number])))
            store_trial(trials, number, ideal, norm)
        return count

    return try_scales


def make_search(
    fit: Any, try_scales: Any, multiple: Any, step: int, divisors: Sequence[float], groups: int, effort: str
) -> Any:
    """Make the inlined function search(scratch): d and k, one lane for each group, so that the scales are d * k.

    fit(scratch, s)                 ideal and norm of the codes that are nearest under the scales s
    try_scales(scratch, trials)     stores trials and returns their number
    multiple(t)                     the multiple nearest to t; the distance between multiples is `step`
    divisors                        candidates for the ratio of the largest scale of a superblock to d
    """
    choose_d, refine = make_choose_d(multiple, divisors, groups), make_refine(fit, multiple, step, groups)
    rounds = ROUNDS[effort]

    @inline
    def search(scratch: int) -> Any:
        trials = scratch + TRIALS
        count = try_scales(scratch, trials)
        d = choose_d(ideal_scales(trials, count), trials, count)
        k = best_multiples(multiple, d, trials, count)
        for _ in range(rounds):
            d, k = refine(scratch, d, k)
        return d, k

    return search
