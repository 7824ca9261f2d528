"""A mixture of experts (Shazeer et al., 2017): which of them see a token, how their rows are lined up, and their sum.

A pair is a token and one of the experts that were chosen for it: pair = token * used + slot. Experts' products work on
rows, of which each belongs to a pair, and which are sorted by expert. There are two lines of them: experts that see few
tokens multiply row by row, in the one; for the others it is worth to unpack their matrices. In that other line each
expert's rows begin with a tile (`quant.products.activations`): rows that no pair needs are empty.

    order   int32 [rows], of each line: the pair of each row, or -1
    places  int32 [pairs]: the row of each pair in the line of few, or -1 less that in the other
    runs    of each line: see `quant.products.experts`
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int32, int64

from localinfer.ops.gate import exp
from quant.jit.threads import share
from quant.jit.vectors import extract, f32x16, inline, load, splat, store
from quant.products.activations import groups_word
from quant.products.layout import RUN_WORDS

Body = Callable[..., None]
MINUS_INFINITY = float32(float("-inf"))


@inline
def exponential(x: float) -> Any:
    """e^x of one number."""
    return extract(exp(splat(f32x16, float32(x))), 0)


@inline
def softmax(x: int, n: int) -> None:
    """The softmax of n floats, in place."""
    largest, total = MINUS_INFINITY, float32(0.0)
    for i in range(n):
        largest = max(largest, load(float32, x + 4 * i))
    for i in range(n):
        value = exponential(load(float32, x + 4 * i) - largest)
        store(x + 4 * i, value)
        total += value
    for i in range(n):
        store(x + 4 * i, load(float32, x + 4 * i) / total)


@inline
def sigmoid(x: int, n: int) -> None:
    """The logistic function of n floats, in place."""
    for i in range(n):
        store(x + 4 * i, float32(1.0) / (float32(1.0) + exponential(-load(float32, x + 4 * i))))


@inline
def unchanged(x: int, n: int) -> None:
    """n floats as they are."""


GATINGS = {"softmax": softmax, "sigmoid": sigmoid, "softmax_of_chosen": unchanged, "sparse_mixer": unchanged}
NEAR = 0.02  # twice the noise that the sparse mixer was trained with


@inline
def share_of_near(logits: int, left: int, n: int, chosen: int) -> Any:
    """The softmax of the largest of n logits that are left over those of them that are near it: no further off than a
    share of the larger one's size (Liu et al., 2024: GRIN). Those that are not left are minus infinity."""
    largest, total = load(float32, left + 4 * chosen), float32(0.0)
    for i in range(n):
        logit = load(float32, logits + 4 * i)
        if largest - logit <= float32(NEAR) * max(abs(logit), largest):
            total += exponential(load(float32, left + 4 * i) - largest)
    return float32(1.0) / total


@inline
def largest_of(scores: int, n: int) -> Any:
    """The number of the largest of n floats, the first of equal ones; if all are NaN, the first one that is left, and
    if none is left, which only a file's biases can bring about, the first."""
    best, value = -1, MINUS_INFINITY
    for i in range(n):
        score = load(float32, scores + 4 * i)
        if (best < 0 and score != MINUS_INFINITY) or score > value:
            best, value = i, score
    return max(best, 0)


def keep_groups_word(best: int) -> Any:
    """The word keep_groups(scores, n, groups, used): of the neighbours among n floats that are a group, all become
    -inf, but in the `used` groups whose best one or two have the largest sums. Behind the floats is room for as many.
    """

    @inline
    def sum_of_best(scores: int, n: int) -> Any:
        first, second = MINUS_INFINITY, MINUS_INFINITY
        for i in range(n):
            score = load(float32, scores + 4 * i)
            second = max(second, min(score, first))
            first = max(first, score)
        return first + second if best == 2 else first

    @inline
    def keep_groups(scores: int, n: int, groups: int, used: int) -> None:
        size, sums = n // groups, scores + 4 * n
        for group in range(groups):
            store(sums + 4 * group, sum_of_best(scores + 4 * size * group, size))
        for _ in range(used):
            store(sums + 4 * largest_of(sums, groups), MINUS_INFINITY)
        for i in range(n):
            if load(float32, sums + 4 * (i // size)) != MINUS_INFINITY:
                store(scores + 4 * i, MINUS_INFINITY)

    return keep_groups


def route(gating: str, normed: int, best: int) -> Body:
    """The kernel that chooses `used` experts for each token: ids int32 [pairs], weights float32 [pairs].

    The router's logits become probabilities; the largest are chosen, by probability plus bias unless that is 0, of
    experts whose groups are used: where there are several `groups`, the `groups_used` whose `best` sum up to most.
    Their weights are the probabilities without bias, divided by their sum if `normed`, times `scale`. With the gating
    "softmax_of_chosen" they are the softmax of the chosen logits instead, with "sparse_mixer" each one's share of
    those that are left when it is chosen.
    """
    probabilities, of_chosen, of_near = GATINGS[gating], gating == "softmax_of_chosen", gating == "sparse_mixer"
    keep_groups = keep_groups_word(best)

    def body(
        tokens, logits, bias, n_expert, groups, groups_used, used, scale, ids, weights, part, parts, scratch
    ):  # fmt: skip
        first, end = share(load(int64, tokens), 1, part, parts)
        for token in range(first, end):
            row, total = logits + 4 * n_expert * token, float32(0.0)
            probabilities(row, n_expert)
            for i in range(n_expert):
                extra = load(float32, bias + 4 * i) if bias else float32(0.0)
                store(scratch + 4 * i, load(float32, row + 4 * i) + extra)
            if groups > 1:
                keep_groups(scratch, n_expert, groups, groups_used)
            for pair in range(used * token, used * (token + 1)):
                chosen = largest_of(scratch, n_expert)
                weight = share_of_near(row, scratch, n_expert, chosen) if of_near else load(float32, row + 4 * chosen)
                store(scratch + 4 * chosen, MINUS_INFINITY)
                store(ids + 4 * pair, int32(chosen))
                store(weights + 4 * pair, weight)
                total += weight
            at = weights + 4 * used * token
            if of_chosen:
                softmax(at, used)
            for slot in range(used):
                weight = load(float32, at + 4 * slot)
                store(at + 4 * slot, (weight / total if normed else weight) * float32(scale))

    return body


def scale_chosen() -> Body:
    """The kernel weights[pair] *= scales[the pair's expert]."""

    def body(tokens, ids, used, scales, weights, part, parts, scratch):
        first, end = share(load(int64, tokens), 1, part, parts)
        for pair in range(used * first, used * end):
            scale = load(float32, scales + 4 * int64(load(int32, ids + 4 * pair)))
            store(weights + 4 * pair, load(float32, weights + 4 * pair) * scale)

    return body


@inline
def note_run(runs: int, number: int, expert: int, first: int, count: int) -> None:
    place = runs + 8 + 8 * RUN_WORDS * number
    store(place, expert)
    store(place + 8, first)
    store(place + 16, count)


def line_up(tile: int, most: int) -> Body:
    """The kernel that gives each pair a row, and tells which rows are of which expert; `few` and `many` become how many
    rows there are in the line of experts with `most` rows or fewer, and in that of the others."""

    def body(
        tokens, ids, n_expert, used, few, few_order, few_runs, many, many_order, many_runs, places, part, parts, scratch
    ):  # fmt: skip
        pairs, row, runs, tiled_row, tiled_runs = load(int64, tokens) * used, 0, 0, 0, 0
        for expert in range(n_expert):
            store(scratch + 8 * expert, 0)
        for pair in range(pairs):
            counter = scratch + 8 * int64(load(int32, ids + 4 * pair))
            store(counter, load(int64, counter) + 1)
        for expert in range(n_expert):
            count = load(int64, scratch + 8 * expert)  # from now on, the place of its next pair
            if count > most:
                note_run(many_runs, tiled_runs, expert, tiled_row, count)
                store(scratch + 8 * expert, -1 - tiled_row)
                room = (count + tile - 1) // tile * tile
                for empty in range(tiled_row + count, tiled_row + room):
                    store(many_order + 4 * empty, int32(-1))
                tiled_row, tiled_runs = tiled_row + room, tiled_runs + 1
            elif count:
                note_run(few_runs, runs, expert, row, count)
                store(scratch + 8 * expert, row)
                row, runs = row + count, runs + 1
        for pair in range(pairs):
            counter = scratch + 8 * int64(load(int32, ids + 4 * pair))
            place = load(int64, counter)
            store(places + 4 * pair, int32(place))
            if place >= 0:
                store(few_order + 4 * place, int32(pair))
                store(counter, place + 1)
            else:
                store(many_order + 4 * (-1 - place), int32(pair))
                store(counter, place - 1)
        store(few_runs, runs)
        store(few, row)
        store(many_runs, tiled_runs)
        store(many, tiled_row)

    return body


def gather(tile: int, passes: int) -> Body:
    """The kernel y[row] = x[token of the row's pair], times the pair's weight unless there are none, 0 in empty rows;
    and q = y quantized unless q is 0."""
    quantize_groups, together = groups_word(tile, passes), max(tile, 1)

    def body(tokens, x, order, weights, used, n, y, q, part, parts, scratch):
        first, end = share(load(int64, tokens), together, part, parts)
        for row in range(first, end):
            pair, place = int64(load(int32, order + 4 * row)), y + 4 * n * row
            source = x + 4 * n * (pair // used)
            weight = load(float32, weights + 4 * pair) if weights and pair >= 0 else float32(1.0)
            for i in range(0, n, 16):
                value = load(f32x16, source + 4 * i) if pair >= 0 else splat(f32x16, float32(0.0))
                store(place + 4 * i, splat(f32x16, weight) * value)
            if q:
                quantize_groups(place, q, row, 0, n // 32, n)

    return body


def blend() -> Body:
    """The kernel y[token] = the sum of its experts' rows, of the lines `few` and `many`, times their weights if
    they have any, in the order of slots."""

    def body(tokens, few, many, places, weights, used, n, y, part, parts, scratch):
        first, end = share(load(int64, tokens), 1, part, parts)
        for token in range(first, end):
            for i in range(0, n, 16):
                total = splat(f32x16, float32(0.0))
                for pair in range(used * token, used * (token + 1)):
                    place = int64(load(int32, places + 4 * pair))
                    row = few + 4 * n * place if place >= 0 else many - 4 * n * (place + 1)
                    weight = load(float32, weights + 4 * pair) if weights else float32(1.0)
                    total = total + splat(f32x16, weight) * load(f32x16, row + 4 * i)
                store(y + 4 * (n * token + i), total)

    return body
