"""Mixture of experts (Shazeer et al., 2017): routing tokens to experts, sorting rows by expert, and combining the
outputs.

A pair is a token and one of its experts: pair = token * used + slot. Expert products work on rows, one per pair, sorted
by expert. There are two groups of rows. In the small group are experts with few rows, which multiply row by row; in the
large group are the others, for which unpacking the weights pays off. In the large group, each expert's rows start at a
tile boundary (`quant.matmul.activations`), and padding rows are empty.

    order      int32 [rows], per group: the pair of each row, or -1
    pair_rows  int32 [pairs]: the row of each pair in the small group, or -1 - row in the large one
    runs       per group: see `quant.matmul.experts`
"""

from collections.abc import Callable
from typing import Any

from numba import float32, int32, int64

from localinfer.kernels.exponentials import exp, softplus
from quant.jit.threads import chunk_range
from quant.jit.vectors import extract, f32x16, inline, load, splat, sqrt, store
from quant.matmul.activations import make_quantize_groups
from quant.matmul.layout import RUN_WORDS

Body = Callable[..., None]
MINUS_INFINITY = float32(float("-inf"))


@inline
def exponential(x: float) -> Any:
    """Return e^x of a scalar."""
    return extract(exp(splat(f32x16, float32(x))), 0)


@inline
def softmax(x: int, n: int) -> None:
    """Replace n floats with their softmax."""
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
    """Replace n floats with their sigmoid."""
    for i in range(n):
        store(x + 4 * i, float32(1.0) / (float32(1.0) + exponential(-load(float32, x + 4 * i))))


@inline
def sqrt_softplus(x: int, n: int) -> None:
    """Replace n floats with the square roots of their softplus."""
    for i in range(n):
        store(x + 4 * i, sqrt(extract(softplus(splat(f32x16, load(float32, x + 4 * i))), 0)))


@inline
def identity(x: int, n: int) -> None:
    """Leave n floats unchanged."""


GATINGS = {"softmax": softmax, "sigmoid": sigmoid, "sqrt_softplus": sqrt_softplus}  # of all logits
GATINGS_OF_CHOSEN = {"softmax_of_chosen": softmax, "sigmoid_of_chosen": sigmoid}
SPARSE_MIXER_THRESHOLD = 0.02  # twice the jitter that the SparseMixer router was trained with


@inline
def sparse_mixer_weight(logits: int, remaining: int, n: int, chosen: int) -> Any:
    """Return the softmax weight of the largest remaining logit among the remaining logits that are close to it: within
    a fraction of the larger magnitude (SparseMixer; Liu et al., 2024: GRIN). In `remaining`, logits that are already
    chosen are -inf."""
    largest, total = load(float32, remaining + 4 * chosen), float32(0.0)
    for i in range(n):
        logit = load(float32, logits + 4 * i)
        if largest - logit <= float32(SPARSE_MIXER_THRESHOLD) * max(abs(logit), largest):
            total += exponential(load(float32, remaining + 4 * i) - largest)
    return float32(1.0) / total


@inline
def argmax(scores: int, n: int) -> Any:
    """Return the index of the largest of n floats, the first one of equals. If all are NaN, return the first one that
    is not -inf; if all are -inf, return 0."""
    best, value = -1, MINUS_INFINITY
    for i in range(n):
        score = load(float32, scores + 4 * i)
        if (best < 0 and score != MINUS_INFINITY) or score > value:
            best, value = i, score
    return max(best, 0)


def make_mask_groups(best: int) -> Any:
    """Make mask_groups(scores, n, groups, used): set the scores of all groups to -inf, except for the `used` groups
    whose `best` scores (one or two) have the largest sums. The n floats after the scores are scratch."""

    @inline
    def sum_of_best(scores: int, n: int) -> Any:
        first, second = MINUS_INFINITY, MINUS_INFINITY
        for i in range(n):
            score = load(float32, scores + 4 * i)
            second = max(second, min(score, first))
            first = max(first, score)
        return first + second if best == 2 else first

    @inline
    def mask_groups(scores: int, n: int, groups: int, used: int) -> None:
        size, sums = n // groups, scores + 4 * n
        for group in range(groups):
            store(sums + 4 * group, sum_of_best(scores + 4 * size * group, size))
        for _ in range(used):
            store(sums + 4 * argmax(sums, groups), MINUS_INFINITY)
        for i in range(n):
            if load(float32, sums + 4 * (i // size)) != MINUS_INFINITY:
                store(scores + 4 * i, MINUS_INFINITY)

    return mask_groups


def route(gating: str, normed: int, best: int) -> Body:
    """Make the kernel that chooses `used` experts for each token: ids int32 [pairs], weights float32 [pairs].

    The router's logits become probabilities. The experts with the largest probability plus bias (unless bias is 0) are
    chosen; with several `groups`, only from the `groups_used` groups whose `best` experts have the largest sum. Their
    weights are the probabilities without bias, divided by their sum if `normed`, times `scale`. With
    "softmax_of_chosen" and "sigmoid_of_chosen", experts are chosen by their logits, and the weights are the function of
    the chosen ones; with "sparse_mixer", see `sparse_mixer_weight`. With a `table`, int32 [vocabulary][used], the
    experts of a token are those in the row of its number in `token_ids`.
    """
    probabilities, weights_of_chosen = GATINGS.get(gating, identity), GATINGS_OF_CHOSEN.get(gating, identity)
    is_sparse_mixer, sums_after = gating == "sparse_mixer", gating in GATINGS_OF_CHOSEN
    mask_groups = make_mask_groups(best)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n_expert, used = args.n_expert, args.used
        first, end = chunk_range(load(int64, args.tokens), 1, chunk_index, n_chunks)
        for token in range(first, end):
            row, total = args.logits + 4 * n_expert * token, float32(0.0)
            probabilities(row, n_expert)
            for i in range(n_expert):
                extra = load(float32, args.bias + 4 * i) if args.bias else float32(0.0)
                store(scratch + 4 * i, load(float32, row + 4 * i) + extra)
            if args.groups > 1:
                mask_groups(scratch, n_expert, args.groups, args.groups_used)
            fixed = args.table + 4 * used * int64(load(int32, args.token_ids + 4 * token)) if args.table else 0
            for pair in range(used * token, used * (token + 1)):
                slot = pair - used * token
                chosen = int64(load(int32, fixed + 4 * slot)) if args.table else int64(argmax(scratch, n_expert))
                weight = (
                    sparse_mixer_weight(row, scratch, n_expert, chosen)
                    if is_sparse_mixer
                    else load(float32, row + 4 * chosen)
                )
                store(scratch + 4 * chosen, MINUS_INFINITY)
                store(args.ids + 4 * pair, int32(chosen))
                store(args.weights + 4 * pair, weight)
                total += weight
            at = args.weights + 4 * used * token
            weights_of_chosen(at, used)
            if sums_after:
                total = float32(0.0)
                for slot in range(used):
                    total += load(float32, at + 4 * slot)
            for slot in range(used):
                weight = load(float32, at + 4 * slot)
                store(at + 4 * slot, (weight / total if normed else weight) * float32(args.scale))

    return body


def scale_expert_weights() -> Body:
    """Make the kernel weights[pair] *= scales[expert of the pair]."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(load(int64, args.tokens), 1, chunk_index, n_chunks)
        for pair in range(args.used * first, args.used * end):
            scale = load(float32, args.scales + 4 * int64(load(int32, args.ids + 4 * pair)))
            store(args.weights + 4 * pair, load(float32, args.weights + 4 * pair) * scale)

    return body


def scale_expert_rows() -> Body:
    """Make the kernel y[row] *= scales[expert of the row]."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(load(int64, args.tokens), 1, chunk_index, n_chunks)
        for row in range(first, end):
            pair = int64(load(int32, args.order + 4 * row))
            if pair >= 0:
                factor = splat(f32x16, load(float32, args.scales + 4 * int64(load(int32, args.ids + 4 * pair))))
                for i in range(4 * args.n * row, 4 * args.n * (row + 1), 64):
                    store(args.y + i, factor * load(f32x16, args.y + i))

    return body


@inline
def write_run(runs: int, number: int, expert: int, first: int, count: int) -> None:
    """Store a run of rows of an expert."""
    record = runs + 8 + 8 * RUN_WORDS * number
    store(record, expert)
    store(record + 8, first)
    store(record + 16, count)


def sort_by_expert(tile: int, max_small_rows: int) -> Body:
    """Make the kernel that assigns rows to pairs and stores the runs of each expert. Experts with at most
    `max_small_rows` rows belong to the small group. `small_rows` and `large_rows` receive the number of rows of each
    group. The expert of a pair is its id / `share`, rounded down."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        pairs, row, runs, tiled_row, tiled_runs = load(int64, args.tokens) * args.used, 0, 0, 0, 0
        for expert in range(args.n_expert):
            store(scratch + 8 * expert, 0)
        for pair in range(pairs):
            counter = scratch + 8 * (int64(load(int32, args.ids + 4 * pair)) // args.share)
            store(counter, load(int64, counter) + 1)
        for expert in range(args.n_expert):
            count = load(int64, scratch + 8 * expert)  # replaced below by the row of the expert's next pair
            if count > max_small_rows:
                write_run(args.large_runs, tiled_runs, expert, tiled_row, count)
                store(scratch + 8 * expert, -1 - tiled_row)
                padded = (count + tile - 1) // tile * tile
                for empty in range(tiled_row + count, tiled_row + padded):
                    store(args.large_order + 4 * empty, int32(-1))
                tiled_row, tiled_runs = tiled_row + padded, tiled_runs + 1
            elif count:
                write_run(args.small_runs, runs, expert, row, count)
                store(scratch + 8 * expert, row)
                row, runs = row + count, runs + 1
        for pair in range(pairs):
            counter = scratch + 8 * (int64(load(int32, args.ids + 4 * pair)) // args.share)
            row_number = load(int64, counter)
            store(args.pair_rows + 4 * pair, int32(row_number))
            if row_number >= 0:
                store(args.small_order + 4 * row_number, int32(pair))
                store(counter, row_number + 1)
            else:
                store(args.large_order + 4 * (-1 - row_number), int32(pair))
                store(counter, row_number - 1)
        store(args.small_runs, runs)
        store(args.small_rows, row)
        store(args.large_runs, tiled_runs)
        store(args.large_rows, tiled_row)

    return body


def gather(tile: int, passes: int) -> Body:
    """Make the kernel y[row] = x[token of the row], times the pair's weight unless weights is 0, 0 in empty rows; and q
    = y quantized unless q is 0."""
    quantize_groups, together = make_quantize_groups(tile, passes), max(tile, 1)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n = args.n
        first, end = chunk_range(load(int64, args.tokens), together, chunk_index, n_chunks)
        for row in range(first, end):
            pair, out = int64(load(int32, args.order + 4 * row)), args.y + 4 * n * row
            source = args.x + 4 * n * (pair // args.used)
            weight = load(float32, args.weights + 4 * pair) if args.weights and pair >= 0 else float32(1.0)
            for i in range(0, n, 16):
                value = load(f32x16, source + 4 * i) if pair >= 0 else splat(f32x16, float32(0.0))
                store(out + 4 * i, splat(f32x16, weight) * value)
            if args.q:
                quantize_groups(out, args.q, row, 0, n // 32, n)

    return body


def combine_experts() -> Body:
    """Make the kernel y[token] = sum of its experts' rows in `small` or `large`, times their weights unless weights is
    0, in the order of slots."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        n = args.n
        first, end = chunk_range(load(int64, args.tokens), 1, chunk_index, n_chunks)
        for token in range(first, end):
            for i in range(0, n, 16):
                total = splat(f32x16, float32(0.0))
                for pair in range(args.used * token, args.used * (token + 1)):
                    number = int64(load(int32, args.pair_rows + 4 * pair))
                    row = args.small + 4 * n * number if number >= 0 else args.large - 4 * n * (number + 1)
                    weight = load(float32, args.weights + 4 * pair) if args.weights else float32(1.0)
                    total = total + splat(f32x16, weight) * load(f32x16, row + 4 * i)
                store(args.y + 4 * (n * token + i), total)

    return body
