"""The scale of every group, where a superblock has one number d and its groups have whole multiples of it.

The scale of a group and the codes that it gives are found by trying. A trial is a scale, the codes that are nearest
under it, and of these what tells the squared error under any other scale s:

    error(s) = sum importance * (weight - s * code)**2 = const - gain(s),   gain(s) = s * (2 * ideal - s) * norm,
    norm = sum importance * code**2,   ideal = sum importance * weight * code / norm

so these codes want the scale `ideal`. Of several trials the best for a scale s is that of the largest gain. Trials lie
in scratch memory, two vectors each: ideal and norm of 16 groups.

Which multiples there are is said by a word multiple(t): the nearest to t.
"""

from collections.abc import Sequence
from typing import Any

from numba import float32

from quant.encoders.searches.tiles import TRIALS, farthest
from quant.jit.vectors import (
    absolute,
    convert,
    extract,
    f16x16,
    f32x8,
    f32x16,
    inline,
    insert,
    join,
    lanes,
    load,
    maximum,
    minimum,
    numbers,
    rint,
    select,
    splat,
    store,
    total,
)

first_eight, second_eight = lanes(range(8)), lanes(range(8, 16))
LARGEST_HALF, LARGEST = 65504.0, 3e38
ROUNDS = {"fast": 0, "normal": 1}  # of settling


def whole(least: int, most: int) -> Any:
    """The word multiple(t) where all whole numbers of a range are."""

    @inline
    def multiple(t: Any) -> Any:
        return minimum(maximum(rint(t), splat(f32x16, float32(least))), splat(f32x16, float32(most)))

    return multiple


def odd(most: int) -> Any:
    """The word multiple(t) where they are 1, 3, 5, ..., most."""

    @inline
    def multiple(t: Any) -> Any:
        one, half = splat(f32x16, float32(1.0)), splat(f32x16, float32(0.5))
        which = minimum(maximum(rint((t - one) * half), splat(f32x16, float32(0.0))), splat(f32x16, float32(most // 2)))
        return which + which + one

    return multiple


@inline
def put_trial(trials: int, number: int, ideal: Any, norm: Any) -> None:
    """Remember one of 16 groups."""
    store(trials + 128 * number, ideal)
    store(trials + 128 * number + 64, norm)


@inline
def trial(trials: int, number: int) -> Any:
    """ideal and norm of one."""
    return load(f32x16, trials + 128 * number), load(f32x16, trials + 128 * number + 64)


@inline
def gain(s: Any, ideal: Any, norm: Any) -> Any:
    """How much smaller the error is than with zeros for all weights."""
    return s * (ideal + ideal - s) * norm


@inline
def as_half(v: Any) -> Any:
    """What half precision makes of scales; finite."""
    limit = splat(f32x16, float32(LARGEST_HALF))
    near = maximum(minimum(v, limit), splat(f32x16, float32(-LARGEST_HALF)))
    return convert(f32x16, convert(f16x16, near))


@inline
def ideal_scales(trials: int, count: int) -> Any:
    """The scale with the largest gain of all, for each of 16 groups."""
    s, best = splat(f32x16, float32(0.0)), splat(f32x16, float32(0.0))
    for number in range(count):
        ideal, norm = trial(trials, number)
        found = gain(ideal, ideal, norm)
        s, best = select(found > best, ideal, s), maximum(found, best)
    return s


@inline
def best_multiples(multiple: Any, d: Any, trials: int, count: int) -> Any:
    """The multiple of d with the largest gain in any trial, for each of 16 groups."""
    k, best = multiple(splat(f32x16, float32(0.0))), splat(f32x16, float32(-LARGEST))
    for number in range(count):
        ideal, norm = trial(trials, number)
        tried = multiple(ideal / d)
        found = gain(d * tried, ideal, norm)
        k, best = select(found > best, tried, k), maximum(found, best)
    return k


@inline
def farthest_of(v: Any, first: int, count: int) -> Any:
    """Of some lanes the value of largest magnitude."""
    found = extract(v, first)
    for lane in range(first + 1, first + count):
        value = extract(v, lane)
        if abs(value) > abs(found):
            found = value
    return found


@inline
def lane_of_largest(v: Any) -> Any:
    """The number of the lane with the largest value, the first of them."""
    most, found = extract(v, 0), 0
    for lane in range(1, 16):
        value = extract(v, lane)
        if value > most:
            most, found = value, lane
    return found


def choosing(multiple: Any, divisors: Sequence[float], groups: int) -> Any:
    """The word choose(ideal, trials, count): d for every group, in half precision, the same in a superblock.

    It is the one with the largest gain of sixteen: the farthest ideal scale of the superblock over each divisor.
    """
    divided = numbers(f32x16, [1 / divisor for divisor in divisors])

    @inline
    def choose(ideal: Any, trials: int, count: int) -> Any:
        chosen = ideal
        for first in range(0, 16, groups):
            d = as_half(splat(f32x16, farthest_of(ideal, first, groups)) * divided())  # a lane for each that is tried
            inverse, gains = splat(f32x16, float32(1.0)) / d, splat(f32x16, float32(0.0))
            for group in range(first, first + groups):
                best = splat(f32x16, float32(-LARGEST))
                for number in range(count):
                    at = trials + 128 * number + 4 * group
                    wanted, norm = splat(f32x16, load(float32, at)), splat(f32x16, load(float32, at + 64))
                    best = maximum(best, gain(multiple(wanted * inverse) * d, wanted, norm))
                gains = gains + best
            found = extract(d, lane_of_largest(gains))
            for group in range(first, first + groups):
                chosen = insert(chosen, group, found)
        return chosen

    return choose


def settling(fit: Any, multiple: Any, step: int, groups: int) -> Any:
    """The word settle(scratch, d, k): a better d and better k for the scales d * k, a lane for each group.

    It tries the neighbours of every k, now that scales are what will be stored, and then takes the d that is best for
    all groups of a superblock together, in half precision.
    """
    sum_of = superblock_sums(groups)

    @inline
    def settle(scratch: int, d: Any, k: Any) -> Any:
        middle, best = k, splat(f32x16, float32(-LARGEST))
        above, below = best, best
        for move in range(-step, step + 1, step):
            tried = multiple(middle + splat(f32x16, float32(move)))
            ideal, norm = fit(scratch, d * tried)
            found = gain(d * tried, ideal, norm)
            better = found > best
            k, best = select(better, tried, k), maximum(found, best)
            above = select(better, tried * ideal * norm, above)
            below = select(better, tried * tried * norm, below)
        above, below, zero = sum_of(above), sum_of(below), splat(f32x16, float32(0.0))
        return as_half(select(below > zero, above / below, zero)), k

    return settle


def superblock_sums(groups: int) -> Any:
    """The word sum_of(v): in every lane the sum of all lanes of its superblock, which has 8 or 16 of them."""

    @inline
    def of_eights(v: Any) -> Any:
        return join(splat(f32x8, total(first_eight(v))), splat(f32x8, total(second_eight(v))))

    @inline
    def of_sixteen(v: Any) -> Any:
        return splat(f32x16, total(v))

    return {8: of_eights, 16: of_sixteen}[groups]


def trying(fit: Any, group: int, ends: Sequence[float]) -> Any:
    """The word try_scales(scratch, trials), which returns how many trials it made: the largest magnitude in each
    group becomes one after the other of these codes."""
    codes, count = tuple(float(end) for end in ends), len(ends)

    @inline
    def try_scales(scratch: int, trials: int) -> Any:
        most = absolute(farthest(scratch, group))
        for number in range(count):
            ideal, norm = fit(scratch, most / splat(f32x16, float32(codes[number])))
            put_trial(trials, number, ideal, norm)
        return count

    return try_scales


def searching(
    fit: Any, try_scales: Any, multiple: Any, step: int, divisors: Sequence[float], groups: int, effort: str
) -> Any:
    """The word search(scratch): d and k, a lane for each group, so that the scales are d * k.

    fit(scratch, s)                 ideal and norm of the codes that are nearest under the scales s
    try_scales(scratch, trials)     puts trials into memory and returns how many
    multiple(t)                     the multiple nearest to t; they are `step` apart
    divisors                        the farthest scale of a superblock of so many groups may be so many times d
    """
    choose, settle = choosing(multiple, divisors, groups), settling(fit, multiple, step, groups)
    rounds = ROUNDS[effort]

    @inline
    def search(scratch: int) -> Any:
        trials = scratch + TRIALS
        count = try_scales(scratch, trials)
        d = choose(ideal_scales(trials, count), trials, count)
        k = best_multiples(multiple, d, trials, count)
        for _ in range(rounds):
            d, k = settle(scratch, d, k)
        return d, k

    return search
