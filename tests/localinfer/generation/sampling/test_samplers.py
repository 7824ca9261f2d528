"""Samplers that drop candidates or change the temperature, on distributions of four tokens."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from localinfer.generation.sampling import Candidates, SamplerChain
from localinfer.generation.sampling.candidates import softmax, top_k_positions
from localinfer.generation.sampling.final_samplers import DistributionSampler
from localinfer.generation.sampling.repetition import apply_penalties, last_tokens
from localinfer.generation.sampling.temperature import dynamic_temperature, temperature
from localinfer.generation.sampling.truncation import (
    min_p,
    top_k,
    top_n_sigma,
    top_p,
    typical,
    xtc,
)
from localinfer.options import Options

PROBS = [0.1, 0.5, 0.05, 0.35]


def candidates(probabilities: Sequence[float]) -> Candidates:
    logits = np.log(np.array(probabilities, dtype=np.float32))
    return Candidates(np.arange(logits.size), logits)


def probabilities_of(chosen: Candidates) -> list[float]:
    return [round(float(fraction), 6) for fraction in softmax(chosen.logits)]


def by_id(chosen: Candidates) -> dict[int, float]:
    pairs = zip(chosen.ids.tolist(), probabilities_of(chosen), strict=True)
    return {id: fraction for id, fraction in sorted(pairs) if fraction}


def logits_of(values: Sequence[float]) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(
    ("k", "ids"),
    [
        (1, [1]),
        (2, [1, 3]),
        (3, [1, 3, 0]),
        (4, [1, 3, 0, 2]),
        (9, [1, 3, 0, 2]),
        (0, [0, 1, 2, 3]),
        (-1, [0, 1, 2, 3]),
    ],
)
def test_top_k(k: int, ids: list[int]) -> None:
    assert top_k(candidates(PROBS), k).ids.tolist() == ids


@pytest.mark.parametrize(
    ("p", "ids"),
    [
        (0.0, [1]),
        (0.49, [1]),
        (0.51, [1, 3]),
        (0.84, [1, 3]),
        (0.86, [1, 3, 0]),
        (0.96, [1, 3, 0, 2]),
        (1.0, [0, 1, 2, 3]),
    ],
)
def test_top_p_includes_the_token_that_crosses_the_threshold(p: float, ids: list[int]) -> None:
    assert top_p(candidates(PROBS), p).ids.tolist() == ids


def test_top_p_renormalizes_remaining_candidates() -> None:
    remaining = top_k(candidates(PROBS), 2)  # renormalized: 0.588 and 0.412
    assert top_p(remaining, 0.55).ids.tolist() == [1]


@pytest.mark.parametrize(
    ("p", "ids"),
    [
        (0.0, [0, 1, 2, 3]),
        (0.09, [0, 1, 2, 3]),
        (0.11, [0, 1, 3]),
        (0.21, [1, 3]),
        (0.71, [1]),
        (1.0, [1]),
        (1.05, [1]),
    ],
)
def test_min_p_is_relative_to_the_most_probable(p: float, ids: list[int]) -> None:
    assert min_p(candidates(PROBS), p).ids.tolist() == ids


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        (1.0, [0.1, 0.5, 0.05, 0.35]),
        (0.5, [0.01 / 0.385, 0.25 / 0.385, 0.0025 / 0.385, 0.1225 / 0.385]),  # the squares, normalized
        (1e9, [0.25, 0.25, 0.25, 0.25]),
        (1e-300, [0.0, 1.0, 0.0, 0.0]),
    ],
)
def test_temperature(t: float, expected: list[float]) -> None:
    assert probabilities_of(temperature(candidates(PROBS), t)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("recent", "expected"),
    [
        ([], [2.0, -2.0, 0.0, 4.0]),
        ([0], [1.0, -2.0, 0.0, 4.0]),
        ([0, 0, 0], [1.0, -2.0, 0.0, 4.0]),  # once for each distinct token
        ([1], [2.0, -4.0, 0.0, 4.0]),
        ([2, 3], [2.0, -2.0, 0.0, 2.0]),
    ],
)
def test_repeat_penalty_divides_positive_and_multiplies_negative_logits(
    recent: list[int], expected: list[float]
) -> None:
    logits = logits_of([2, -2, 0, 4])
    assert apply_penalties(Candidates(np.arange(4), logits), recent, 2.0).logits.tolist() == expected
    assert logits.tolist() == [2, -2, 0, 4]


@pytest.mark.parametrize(("n", "expected"), [(0, []), (2, [6, 7]), (9, [5, 6, 7]), (-1, [5, 6, 7])])
def test_last_tokens(n: int, expected: list[int]) -> None:
    assert list(last_tokens([5, 6, 7], n)) == expected


@pytest.mark.parametrize(
    ("u", "token"),
    [
        (0.0, 0),
        (0.0999, 0),
        (0.1001, 1),
        (0.5999, 1),
        (0.6001, 2),
        (0.6499, 2),
        (0.6501, 3),
        (1 - 2**-53, 3),
    ],
)
def test_inverse_transform_sampling(u: float, token: int) -> None:
    assert DistributionSampler()(candidates(PROBS), u) == token


def test_impossible_tokens_are_never_drawn() -> None:
    chosen = candidates([0.0001, 1.0, 0.0001, 0.0001])._replace(logits=logits_of([-np.inf, 0, 0, -np.inf]))
    assert {DistributionSampler()(chosen, u) for u in (0.0, 0.25, 0.499, 0.5, 1 - 2**-53)} == {1, 2}


# --- the values of llama.cpp's own tests (tests/test-sampling.cpp): probabilities before, after ---

RISING, FALLING = [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (0, {3: 1.0}),
        (0.7, {2: 0.428571, 3: 0.571429}),
        (0.8, {1: 0.222222, 2: 0.333333, 3: 0.444444}),
        (1, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}),
    ],
)
def test_top_p_matches_llama_cpp(p: float, expected: dict[int, float]) -> None:
    assert by_id(top_p(candidates(RISING), p)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (0.09, {3: 1.0}),
        (0.19, {2: 2 / 3, 3: 1 / 3}),
        (0.29, {1: 3 / 6, 2: 2 / 6, 3: 1 / 6}),
        (0.39, {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1}),
    ],
)
def test_xtc_drops_all_top_choices_but_the_last(threshold: float, expected: dict[int, float]) -> None:
    assert by_id(xtc(candidates(FALLING), threshold)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([0.97, 0.01, 0.01, 0.01], {0}),
        ([0.4, 0.2, 0.2, 0.2], {1, 2, 3}),
    ],
)
def test_typical(before: list[float], expected: set[int]) -> None:
    assert set(typical(candidates(before), 0.5).ids.tolist()) == expected


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, {2: 0.428571, 3: 0.571429}),
        (0, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}),
        (3, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}),
    ],
)
def test_top_n_sigma(n: float, expected: dict[int, float]) -> None:
    assert by_id(top_n_sigma(candidates(RISING), n)) == pytest.approx(expected, abs=1e-5)


def test_top_n_sigma_ignores_impossible_tokens() -> None:
    chosen = Candidates(np.arange(6), np.append(candidates(RISING).logits, logits_of([-np.inf, -np.inf])))
    assert by_id(top_n_sigma(chosen, 1)) == pytest.approx({2: 0.428571, 3: 0.571429}, abs=1e-5)


# --- closed forms ---


def test_dynamic_temperature_follows_the_entropy() -> None:
    uniform, certain = candidates([0.25] * 4), candidates([1.0, 1e-30, 1e-30, 1e-30])
    assert dynamic_temperature(certain, 1.0, 0.5, 1.0).logits[1] == pytest.approx(np.log(1e-30) / 0.5, rel=1e-5)
    assert probabilities_of(dynamic_temperature(uniform, 1.0, 0.5, 1.0)) == [0.25] * 4
    entropy = -sum(p * math.log(p) for p in PROBS) / math.log(4)
    t = 0.5 + 1.0 * entropy**2
    powers = [p ** (1 / t) for p in PROBS]
    expected = [power / sum(powers) for power in powers]
    assert probabilities_of(dynamic_temperature(candidates(PROBS), 1.0, 0.5, 2.0)) == pytest.approx(expected, abs=1e-5)


def test_dynamic_temperature_is_at_least_0() -> None:
    certain = candidates([1.0, 1e-30, 1e-30, 1e-30])
    assert 1.0 in probabilities_of(dynamic_temperature(certain, 0.2, 5.0, 1.0))


@pytest.mark.parametrize(("n", "ids"), [(0, [1]), (1, [1]), (2, [1, 3]), (3, [1, 3, 0]), (9, [1, 3, 0, 2])])
def test_min_keep(n: int, ids: list[int]) -> None:
    assert top_p(candidates(PROBS), 0.1, n).ids.tolist() == ids
    assert min_p(candidates(PROBS), 0.99, n).ids.tolist() == ids
    assert len(typical(candidates(PROBS), 0.0, n).ids) == len(ids)


def test_xtc_respects_min_keep() -> None:
    assert xtc(candidates(FALLING), 0.29, 3).ids.tolist() == [1, 2, 3]
    assert len(xtc(candidates(FALLING), 0.09, 2).ids) == 4


# --- ties and the fast search for the largest ---


def test_ties_go_to_the_lowest_id() -> None:
    uniform = Candidates(np.arange(4), logits_of([1, 2, 2, 2]))
    assert top_k(uniform, 2).ids.tolist() == [1, 2]
    assert top_p(uniform, 0.0).ids.tolist() == [1]
    assert SamplerChain(Options(temp=0), 4)(uniform.logits, []) == 1


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
        assert top_k_positions(logits, k).tolist() == expected[:k].tolist()


def test_top_p_over_a_large_vocabulary_is_exact() -> None:
    logits = np.random.default_rng(3).standard_normal(20_000).astype(np.float32)
    order = np.argsort(-logits, kind="stable")
    fractions = np.exp(logits[order].astype(np.float64))
    cumulative = fractions.cumsum() / fractions.sum()
    for p in (0.001, 0.1, 0.5, 0.9, 0.999):
        n = int(np.count_nonzero(cumulative < p)) + 1
        assert top_p(Candidates(np.arange(20_000), logits), p).ids.tolist() == order[:n].tolist()
