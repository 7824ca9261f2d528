"""Draws that remember: Mirostat and adaptive-p, against their formulas in plain Python; log-probabilities."""

import math

import numpy as np
import pytest

from localinfer.generation.sampling import Candidates
from localinfer.generation.sampling.choice import AdaptiveP, Choice, Mirostat, MirostatV2
from localinfer.generation.sampling.logprobs import log_probabilities, most_probable

ZIPF = Candidates(np.arange(1000), -1.2 * np.log(np.arange(1, 1001)))  # the i-th has a probability as i ** -1.2
SHARES = [(i**-1.2) / sum(j**-1.2 for j in range(1, 1001)) for i in range(1, 1001)]


@pytest.mark.parametrize("tau", [1.0, 3.0, 5.0])
@pytest.mark.parametrize("version", [Mirostat, MirostatV2])
def test_mirostat_holds_the_surprise(version: type[Mirostat], tau: float) -> None:
    random = np.random.default_rng(0)
    mirostat = version(tau, 0.1, 1000)
    surprises = []
    for _ in range(3000):
        left = mirostat.left(ZIPF)
        before = mirostat.mu
        mirostat(ZIPF, random.random())
        surprises.append((before - mirostat.mu) / 0.1 + tau)
        assert 1 <= left.ids.size <= 1000
    assert np.mean(surprises[500:]) == pytest.approx(tau, abs=0.1)


def test_mirostat_estimates_zipf_s_law() -> None:
    mirostat = Mirostat(3.0, 0.1, 1000)
    s, epsilon = 1.2, 0.2
    k = ((epsilon * 2**6.0) / (1 - 1000**-epsilon)) ** (1 / s)
    assert mirostat.left(ZIPF).ids.size == int(k)


def test_mirostat_2_drops_what_surprises_by_more_than_mu() -> None:
    mirostat = MirostatV2(3.0, 0.1, 1000)
    assert mirostat.left(ZIPF).ids.size == sum(-math.log2(p) <= 6.0 for p in SHARES)
    mirostat.mu = -1.0
    assert mirostat.left(ZIPF).ids.tolist() == [0]


@pytest.mark.parametrize("logits", [[0.0], [0.0, -np.inf], [1.0, 1.0, 1.0], [5.0, -3e38]])
@pytest.mark.parametrize("choice", [Mirostat(5, 0.1, 4), MirostatV2(5, 0.1, 4), AdaptiveP(0.5, 0.9), Choice()])
def test_odd_distributions_are_defined(choice: Choice, logits: list[float]) -> None:
    candidates = Candidates(np.arange(len(logits)), np.array(logits, np.float32))
    with np.errstate(all="raise", under="ignore"):
        for u in (0.0, 0.5, 1 - 2**-53):
            assert candidates.logits[choice(candidates, u)] > -np.inf


def test_adaptive_p_lifts_what_is_near_its_aim() -> None:
    probabilities = [0.5, 0.3, 0.15, 0.05]
    candidates = Candidates(np.arange(4), np.log(probabilities))
    adaptive = AdaptiveP(0.3, 0.9)

    def lifted(p: float, aim: float) -> float:
        distance = abs(p - aim) / 0.3
        return 5 - 10 * distance**2 / (1 + distance)

    assert adaptive.left(candidates).logits.tolist() == pytest.approx([lifted(p, 0.3) for p in probabilities])
    assert adaptive(candidates, 0.0) == 0  # it was too probable: now it aims lower
    aim = 2 * 0.3 - (0.5 + 0.9 * 3.0) / (1 + 0.9 * 10)
    assert adaptive.left(candidates).logits.tolist() == pytest.approx([lifted(p, aim) for p in probabilities])


def test_adaptive_p_without_a_target_draws_as_usual() -> None:
    assert AdaptiveP(-1, 0.9)(ZIPF, 0.7) == Choice()(ZIPF, 0.7)


def test_log_probabilities() -> None:
    logits = np.log(np.array([0.1, 0.5, 0.05, 0.35], np.float32)) + 7
    assert np.exp(log_probabilities(logits)).tolist() == pytest.approx([0.1, 0.5, 0.05, 0.35], abs=1e-7)
    best = most_probable(log_probabilities(logits), 2)
    assert [id for id, _ in best] == [1, 3]
    assert [p for _, p in best] == pytest.approx([math.log(0.5), math.log(0.35)], abs=1e-6)
    assert log_probabilities(np.array([np.nan, 0.0])).tolist() == [-np.inf, 0.0]
