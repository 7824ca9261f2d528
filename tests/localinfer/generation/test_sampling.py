"""Sampling: each link of the chain on distributions of four tokens, then the whole chain."""

import dataclasses
import json
import math
import time
from collections.abc import Sequence

import numpy as np
import pytest
from make_sampling_fixtures import FILE, N_CASES, draw_case
from numpy.typing import NDArray

from localinfer.errors import LocalInferError
from localinfer.generation import sampling
from localinfer.generation.sampling import Candidates, Sampler
from localinfer.options import Options

PROBS = [0.1, 0.5, 0.05, 0.35]
OFF = Options(top_k=0, top_p=1.0, min_p=0.0, temp=1.0, seed=1)


def candidates(probabilities: Sequence[float]) -> Candidates:
    logits = np.log(np.array(probabilities, dtype=np.float32))
    return Candidates(np.arange(logits.size), logits)


def probabilities(chosen: Candidates) -> list[float]:
    shares = sampling.weights(chosen.logits)
    return [round(float(share), 4) for share in shares / shares.sum()]


def logits_of(values: Sequence[float]) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


# --- each link ---


@pytest.mark.parametrize(("k", "ids"), [
    (1, [1]), (2, [1, 3]), (3, [1, 3, 0]), (4, [1, 3, 0, 2]), (9, [1, 3, 0, 2]), (0, [0, 1, 2, 3]),
    (-1, [0, 1, 2, 3]),
])
def test_top_k(k: int, ids: list[int]) -> None:
    assert sampling.top_k(candidates(PROBS), k).ids.tolist() == ids


@pytest.mark.parametrize(("p", "ids"), [
    (0.0, [1]), (0.49, [1]), (0.51, [1, 3]), (0.84, [1, 3]), (0.86, [1, 3, 0]), (0.96, [1, 3, 0, 2]),
    (1.0, [0, 1, 2, 3]),
])
def test_top_p_includes_the_token_that_crosses(p: float, ids: list[int]) -> None:
    assert sampling.top_p(candidates(PROBS), p).ids.tolist() == ids


def test_top_p_counts_only_what_is_left() -> None:
    left = sampling.top_k(candidates(PROBS), 2)  # 0.588 and 0.412 of the two
    assert sampling.top_p(left, 0.55).ids.tolist() == [1]


@pytest.mark.parametrize(("p", "ids"), [
    (0.0, [0, 1, 2, 3]), (0.09, [0, 1, 2, 3]), (0.11, [0, 1, 3]), (0.21, [1, 3]), (0.71, [1]), (1.0, [1]),
    (1.05, [1]),
])
def test_min_p_is_relative_to_the_most_probable(p: float, ids: list[int]) -> None:
    assert sampling.min_p(candidates(PROBS), p).ids.tolist() == ids


@pytest.mark.parametrize(("t", "expected"), [
    (1.0, [0.1, 0.5, 0.05, 0.35]),
    (0.5, [0.01 / 0.385, 0.25 / 0.385, 0.0025 / 0.385, 0.1225 / 0.385]),  # the squares, normalized
    (1e9, [0.25, 0.25, 0.25, 0.25]),
    (1e-300, [0.0, 1.0, 0.0, 0.0]),
])
def test_temperature(t: float, expected: list[float]) -> None:
    assert probabilities(sampling.temperature(candidates(PROBS), t)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("recent", "expected"), [
    ([], [2.0, -2.0, 0.0, 4.0]),
    ([0], [1.0, -2.0, 0.0, 4.0]),
    ([0, 0, 0], [1.0, -2.0, 0.0, 4.0]),  # once for each distinct token
    ([1], [2.0, -4.0, 0.0, 4.0]),
    ([2, 3], [2.0, -2.0, 0.0, 2.0]),
])
def test_repeat_penalty_divides_positive_and_multiplies_negative_logits(
    recent: list[int], expected: list[float]
) -> None:
    logits = logits_of([2, -2, 0, 4])
    assert sampling.penalized(logits, recent, 2.0).tolist() == expected
    assert logits.tolist() == [2, -2, 0, 4]


@pytest.mark.parametrize(("n", "expected"), [(0, []), (2, [6, 7]), (9, [5, 6, 7]), (-1, [5, 6, 7])])
def test_the_last_recent_tokens(n: int, expected: list[int]) -> None:
    assert list(sampling.last([5, 6, 7], n)) == expected


@pytest.mark.parametrize(("u", "token"), [
    (0.0, 0), (0.0999, 0), (0.1001, 1), (0.5999, 1), (0.6001, 2), (0.6499, 2), (0.6501, 3), (1 - 2**-53, 3),
])
def test_draw_finds_the_share_that_contains_u(u: float, token: int) -> None:
    assert sampling.draw(candidates(PROBS), u) == token


def test_draw_never_takes_an_impossible_token() -> None:
    chosen = candidates([0.0001, 1.0, 0.0001, 0.0001])._replace(logits=logits_of([-np.inf, 0, 0, -np.inf]))
    assert {sampling.draw(chosen, u) for u in (0.0, 0.25, 0.499, 0.5, 1 - 2**-53)} == {1, 2}


# --- ties and the fast search for the largest ---


def test_ties_go_to_the_lowest_id() -> None:
    even = Candidates(np.arange(4), logits_of([1, 2, 2, 2]))
    assert sampling.top_k(even, 2).ids.tolist() == [1, 2]
    assert sampling.top_p(even, 0.0).ids.tolist() == [1]
    assert Sampler(Options(temp=0), 4).sample(even.logits, []) == 1


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 4096, 49_152, 262_144])
@pytest.mark.parametrize("kind", ["normal", "coarse", "equal", "rising", "falling", "impossible"])
def test_largest_is_a_stable_sort(n: int, kind: str) -> None:
    random = np.random.default_rng(n)
    logits = {
        "normal": random.standard_normal(n),
        "coarse": random.integers(0, 5, n),
        "equal": np.zeros(n),
        "rising": np.arange(n),
        "falling": -np.arange(n),
        "impossible": np.where(random.random(n) < 0.5, -np.inf, 1.0),
    }[kind].astype(np.float32)
    expected = np.argsort(-logits, kind="stable")
    for k in (1, 40, 300, n):
        assert sampling.largest(logits, k).tolist() == expected[:k].tolist()


def test_top_p_over_a_whole_vocabulary_is_exact() -> None:
    logits = np.random.default_rng(3).standard_normal(20_000).astype(np.float32)
    order = np.argsort(-logits, kind="stable")
    shares = np.exp(logits[order].astype(np.float64))
    reached = shares.cumsum() / shares.sum()
    for p in (0.001, 0.1, 0.5, 0.9, 0.999):
        n = int(np.count_nonzero(reached < p)) + 1
        assert sampling.top_p(Candidates(np.arange(20_000), logits), p).ids.tolist() == order[:n].tolist()


# --- the whole chain ---


def test_the_order_of_the_chain() -> None:
    """Temperature comes last: a hot one does not let in what top-p and min-p have dropped."""
    options = Options(top_k=3, top_p=0.8, min_p=0.2, temp=1e6, seed=5)  # top-k leaves .526 .368 .105
    sampler = Sampler(options, 4)
    drawn = [sampler.sample(candidates(PROBS).logits, []) for _ in range(400)]
    assert set(drawn) == {1, 3}
    assert 150 < drawn.count(1) < 250


@pytest.mark.parametrize("number", range(N_CASES))
def test_what_is_left_is_what_llama_cpp_leaves(number: int) -> None:
    expected = json.loads(FILE.read_text())[number]
    logits, recent, chosen = draw_case(number)
    left = Sampler(Options(**chosen), logits.size).candidates(logits, recent)  # type: ignore[arg-type]
    shares = sampling.weights(left.logits) / sampling.weights(left.logits).sum()
    mine = dict(zip(left.ids.tolist(), shares.tolist(), strict=True))
    assert len(mine) == expected["survivors"]
    for id, probability in expected["first"]:
        assert mine[id] == pytest.approx(probability, abs=2e-6)


def test_penalties_work_at_temperature_0() -> None:
    options = Options(temp=0, repeat_penalty=2.0, repeat_last_n=1)
    assert Sampler(options, 4).sample(logits_of([0, 4, 3, 1]), [1]) == 2
    assert Sampler(options, 4).sample(logits_of([0, 4, 3, 1]), [1, 0]) == 1


def test_a_hundred_thousand_draws_follow_the_probabilities() -> None:
    sampler = Sampler(OFF, 4)
    logits = candidates(PROBS).logits
    counts = np.bincount([sampler.sample(logits, []) for _ in range(100_000)], minlength=4)
    expected = np.array(PROBS) * 100_000
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 16.27  # 3 degrees of freedom: exceeded once in a thousand seeds


def test_the_same_seed_draws_the_same() -> None:
    logits = np.random.default_rng(0).standard_normal(1000).astype(np.float32)

    def drawn(seed: int) -> list[int]:
        sampler = Sampler(Options(seed=seed), 1000)
        return [sampler.sample(logits, []) for _ in range(50)]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)
    assert drawn(2**64 - 1) == drawn(2**64 - 1)


def test_a_random_seed_is_reported_and_repeats_the_draws() -> None:
    logits = np.zeros(1000, dtype=np.float32)
    first = Sampler(Options(seed=-1, temp=1.0, top_k=0), 1000)
    again = Sampler(Options(seed=first.seed, temp=1.0, top_k=0), 1000)
    assert first.seed >= 0
    assert Sampler(Options(seed=-1), 4).seed != first.seed
    assert [first.sample(logits, []) for _ in range(20)] == [again.sample(logits, []) for _ in range(20)]


def test_banned_tokens_are_never_chosen() -> None:
    logits = logits_of([9, 1, 0, 8])
    assert Sampler(Options(temp=0), 4, banned=[0, 3]).sample(logits, []) == 1
    assert {Sampler(Options(seed=seed), 4, banned={0, 3}).sample(logits, []) for seed in range(20)} == {1, 2}
    assert logits.tolist() == [9, 1, 0, 8]


# --- hostile numbers ---


@pytest.mark.parametrize("values", [[np.nan] * 4, [-np.inf] * 4, [np.nan, -np.inf, np.nan, np.nan]])
@pytest.mark.parametrize("temp", [0.0, 0.8])
def test_logits_without_a_possible_token_are_an_error(values: list[float], temp: float) -> None:
    with pytest.raises(LocalInferError, match=r"^logits: .*NaN"):
        Sampler(Options(temp=temp), 4).sample(logits_of(values), [0])


@pytest.mark.parametrize(("values", "possible"), [
    ([np.nan, 1, np.nan, 1], {1, 3}),
    ([5, np.inf, -np.inf, np.nan], {1}),
    ([5, np.inf, 0, np.inf], {1, 3}),
    ([-np.inf, -np.inf, 0, -np.inf], {2}),
    ([3e38, -3e38, 3e38, 0], {0, 2}),
    ([0, 0, 0, 0], {0, 1, 2, 3}),
])
@pytest.mark.parametrize("options", [
    OFF, Options(), Options(top_k=0), Options(repeat_penalty=1e-30, repeat_last_n=0), Options(temp=1e-300),
    Options(temp=1e6),
])
def test_odd_logits_are_defined(values: list[float], possible: set[int], options: Options) -> None:
    with np.errstate(all="raise", under="ignore"):
        drawn = {
            Sampler(dataclasses.replace(options, seed=seed), 4).sample(logits_of(values), [])
            for seed in range(60)
        }
        greedy = Sampler(Options(temp=0), 4).sample(logits_of(values), [])
    assert drawn == possible
    assert greedy == min(possible)


def test_a_penalty_may_overflow() -> None:
    options = Options(repeat_penalty=math.nextafter(0, 1), repeat_last_n=-1)
    assert Sampler(options, 4).sample(logits_of([1, 3e38, -1, 0]), [1, 2, 3]) == 1


@pytest.mark.parametrize(("options", "milliseconds"), [
    (Options(), 1.0), (Options(temp=0), 1.0), (Options(repeat_penalty=1.1), 1.0),
])
def test_a_large_vocabulary_is_fast(options: Options, milliseconds: float) -> None:
    logits = (np.random.default_rng(0).standard_normal(262_144) * 3).astype(np.float32)
    sampler = Sampler(options, logits.size)
    spent = []
    for _ in range(15):
        start = time.perf_counter()
        sampler.sample(logits, list(range(100)))
        spent.append(time.perf_counter() - start)
    assert min(spent) * 1000 < milliseconds  # the least, since other programs may run beside this one
