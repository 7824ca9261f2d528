"""Final samplers of the chain, which draw one of the candidates. Some keep state between tokens."""

import math

import numpy as np

from .candidates import Candidates, softmax, take, top_k_positions, unnormalized_probabilities
from .truncation import top_k

ZIPF_TOKENS = 100  # most probable tokens, from which Mirostat estimates Zipf's exponent
PEAK, SHARPNESS, WIDTH = 5.0, 10.0, 0.3  # shape of adaptive-p's logits around its target


class DistributionSampler:
    """A sampler that draws a candidate by its probability, without state."""

    def restrict(self, candidates: Candidates) -> Candidates:
        """Return the candidates to draw from."""
        return candidates

    def update(self, candidates: Candidates, remaining: Candidates, position: int) -> None:
        """Update the state after the token at `position` of `remaining` was drawn."""

    def __call__(self, candidates: Candidates, u: float) -> int:
        """Return the id of a candidate, drawn by a number `u` in [0, 1)."""
        remaining = self.restrict(candidates)
        position = draw_position(remaining, u) if remaining.ids.size > 1 else 0
        self.update(candidates, remaining, position)
        return int(remaining.ids[position])


def draw_position(candidates: Candidates, u: float) -> int:
    """Return the position of the candidate whose interval of the cumulative distribution contains `u`,
    a number in [0, 1)."""
    cumulative = unnormalized_probabilities(candidates.logits).cumsum()
    point = min(u * cumulative[-1], np.nextafter(cumulative[-1], 0))
    return int(np.searchsorted(cumulative, point, side="right"))


class Mirostat(DistributionSampler):
    """Mirostat (Basu et al., 2020), which keeps the surprise of the text near `tau` bits per token.

    `mu` is the current target; each token moves it by `eta` times its error. The first version keeps the k most
    probable tokens, where k is estimated from mu and Zipf's law.
    """

    def __init__(self, tau: float, eta: float, n_vocab: int) -> None:
        self.tau, self.eta, self.n_vocab = tau, eta, n_vocab
        self.mu = 2 * tau

    def restrict(self, candidates: Candidates) -> Candidates:
        best = take(candidates, top_k_positions(candidates.logits, ZIPF_TOKENS))
        s = zipf_exponent(best)
        epsilon = s - 1
        with np.errstate(all="ignore"):
            k = (epsilon * np.exp2(self.mu) / (1 - np.float64(self.n_vocab) ** -epsilon)) ** (1 / s)
        return top_k(candidates, int(np.clip(np.nan_to_num(k, nan=1.0), 1, candidates.ids.size)))

    def update(self, _: Candidates, remaining: Candidates, position: int) -> None:
        surprise = -math.log2(softmax(remaining.logits)[position])
        self.mu -= self.eta * (surprise - self.tau)


def zipf_exponent(best_first: Candidates) -> np.float64:
    """Return Zipf's exponent s by least squares: the probability of the i-th token is about i ** -s."""
    possible = best_first.logits[best_first.logits > -np.inf].astype(np.float64)
    if possible.size < 2:
        return np.float64(np.nan)
    log_rank_steps = np.diff(np.log(np.arange(1, possible.size + 1)))
    return np.float64(float(-np.diff(possible) @ log_rank_steps) / float(log_rank_steps @ log_rank_steps))


class MirostatV2(Mirostat):
    """Mirostat's second version, which drops tokens with a surprise of more than `mu` bits."""

    def restrict(self, candidates: Candidates) -> Candidates:
        positions = np.flatnonzero(softmax(candidates.logits) >= 2.0**-self.mu)
        return take(candidates, positions if positions.size else top_k_positions(candidates.logits, 1))


class AdaptiveP(DistributionSampler):
    """Adaptive-p, which keeps the probability of drawn tokens near `target`, averaged with a `decay` per token."""

    def __init__(self, target: float, decay: float) -> None:
        self.target, self.decay = target, min(decay, 0.99)
        self.total = 1 / (1 - self.decay)
        self.sum = self.target * self.total

    def restrict(self, candidates: Candidates) -> Candidates:
        if self.target < 0:
            return candidates
        target = min(max(2 * self.target - self.sum / self.total, 0.0), 1.0)
        distance = np.abs(softmax(candidates.logits) - target) / WIDTH
        logits = PEAK - SHARPNESS * distance**2 / (1 + distance)
        return Candidates(candidates.ids, np.where(candidates.logits > -np.inf, logits, -np.inf))

    def update(self, candidates: Candidates, _: Candidates, position: int) -> None:
        self.sum = float(softmax(candidates.logits)[position]) + self.decay * self.sum
        self.total = 1 + self.decay * self.total
