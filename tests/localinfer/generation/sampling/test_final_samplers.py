"""Stateful samplers: Mirostat and adaptive-p against their formulas in plain Python; log-probabilities."""

import math

import numpy as np
import pytest

from localinfer.generation.sampling import Candidates
from localinfer.generation.sampling.final_samplers import AdaptiveP, DistributionSampler, Mirostat, MirostatV2
from localinfer.generation.sampling.logprobs import log_probabilities, most_probable

ZIPF = Candidates(np.arange(1000), -1.2 * np.log(np.arange(1, 1001)))  # probabilities proportional to i ** -1.2
ZIPF_PROBABILITIES = [(i**-1.2) / sum(j**-1.2 for j in range(1, 1001)) for i in range(1, 1001)]


@pytest.mark.parametrize("tau", [1.0, 3.0, 5.0])
@pytest.mark.parametrize("version", [Mirostat, MirostatV2])
def test_mean_surprise_is_tau(version: type[Mirostat], tau: float) -> None:
    random = np.random.default_rng(0)
    mirostat = version(tau, 0.1, 1000)
    surprises = []
    for _ in range(3000):
        remaining = mirostat.restrict(ZIPF)
        previous_mu = mirostat.mu
        mirostat(ZIPF, random.random())
        surprises.append((previous_mu - mirostat.mu) / 0.1 + tau)
        assert 1 <= remaining.ids.size <= 1000
    assert np.mean(surprises[500:]) == pytest.approx(tau, abs=0.1)


def test_mirostat_truncates_by_zipfs_law() -> None:
    mirostat = Mirostat(3.0, 0.1, 1000)
    s, epsilon = 1.2, 0.2
    k = ((epsilon * 2**6.0) / (1 - 1000**-epsilon)) ** (1 / s)
    assert mirostat.restrict(ZIPF).ids.size == int(k)


def test_mirostat_2_drops_tokens_with_surprise_above_mu() -> None:
    mirostat = MirostatV2(3.0, 0.1, 1000)
    assert mirostat.restrict(ZIPF).ids.size == sum(-math.log2(p) <= 6.0 for p in ZIPF_PROBABILITIES)
    mirostat.mu = -1.0
    assert mirostat.restrict(ZIPF).ids.tolist() == [0]


@pytest.mark.parametrize("logits", [[0.0], [0.0, -np.inf], [1.0, 1.0, 1.0], [5.0, -3e38]])
@pytest.mark.parametrize(
    "sampler", [Mirostat(5, 0.1, 4), MirostatV2(5, 0.1, 4), AdaptiveP(0.5, 0.9), DistributionSampler()]
)
def test_extreme_distributions_give_a_possible_token(sampler: DistributionSampler, logits: list[float]) -> None:
    candidates = Candidates(np.arange(len(logits)), np.array(logits, np.float32))
    with np.errstate(all="raise", under="ignore"):
        for u in (0.0, 0.5, 1 - 2**-53):
            assert candidates.logits[sampler(candidates, u)] > -np.inf


def test_adaptive_p_prefers_probabilities_near_the_target() -> None:
    probabilities = [0.5, 0.3, 0.15, 0.05]
    candidates = Candidates(np.arange(4), np.log(probabilities))
    adaptive = AdaptiveP(0.3, 0.9)

    def expected(p: float, target: float) -> float:
        distance = abs(p - target) / 0.3
        return 5 - 10 * distance**2 / (1 + distance)

    assert adaptive.restrict(candidates).logits.tolist() == pytest.approx([expected(p, 0.3) for p in probabilities])
    assert adaptive(candidates, 0.0) == 0  # above the target: the next is lower
    target = 2 * 0.3 - (0.5 + 0.9 * 3.0) / (1 + 0.9 * 10)
    assert adaptive.restrict(candidates).logits.tolist() == pytest.approx([expected(p, target) for p in probabilities])


def test_adaptive_p_without_a_target_samples_the_distribution() -> None:
    assert AdaptiveP(-1, 0.9)(ZIPF, 0.7) == DistributionSampler()(ZIPF, 0.7)


def test_log_probabilities() -> None:
    logits = np.log(np.array([0.1, 0.5, 0.05, 0.35], np.float32)) + 7
    assert np.exp(log_probabilities(logits)).tolist() == pytest.approx([0.1, 0.5, 0.05, 0.35], abs=1e-7)
    best = most_probable(log_probabilities(logits), 2)
    assert [id for id, _ in best] == [1, 3]
    assert [p for _, p in best] == pytest.approx([math.log(0.5), math.log(0.35)], abs=1e-6)
    assert log_probabilities(np.array([np.nan, 0.0])).tolist() == [-np.inf, 0.0]
