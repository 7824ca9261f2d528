"""What ends the chain: one of the candidates is drawn. Some ways to do so remember what they drew before."""

import math

import numpy as np

from .candidates import Candidates, largest, probabilities, take, weights
from .truncation import top_k

ESTIMATED_FROM = 100  # most probable tokens, from which Mirostat estimates how fast probabilities fall
PEAK, SHARPNESS, WIDTH = 5.0, 10.0, 0.3  # of the hill that adaptive-p makes of probabilities around its target


class Choice:
    """Draws one of the candidates by their probabilities, and does not remember it."""

    def left(self, candidates: Candidates) -> Candidates:
        """What is drawn from."""
        return candidates

    def remember(self, candidates: Candidates, left: Candidates, place: int) -> None:
        """What was drawn from what was left of the candidates."""

    def __call__(self, candidates: Candidates, u: float) -> int:
        """One of the candidates, by a number `u` in [0, 1)."""
        left = self.left(candidates)
        place = drawn_place(left, u) if left.ids.size > 1 else 0
        self.remember(candidates, left, place)
        return int(left.ids[place])


def drawn_place(candidates: Candidates, u: float) -> int:
    """Where the one is whose share of the probability contains `u`, a number in [0, 1)."""
    reached = weights(candidates.logits).cumsum()
    below_all = min(u * reached[-1], np.nextafter(reached[-1], 0))
    return int(np.searchsorted(reached, below_all, side="right"))


class Mirostat(Choice):
    """Keeps how much the text surprises near `tau` bits a token (Basu et al., 2020).

    `mu` is the surprise that is aimed at now; each token moves it by `eta` times what it was off the mark. The
    first version drops what is behind the k-th token, where k is estimated from mu and Zipf's law.
    """

    def __init__(self, tau: float, eta: float, n_vocab: int) -> None:
        self.tau, self.eta, self.n_vocab = tau, eta, n_vocab
        self.mu = 2 * tau

    def left(self, candidates: Candidates) -> Candidates:
        best = take(candidates, largest(candidates.logits, ESTIMATED_FROM))
        s = steepness(best)
        epsilon = s - 1
        with np.errstate(all="ignore"):
            k = (epsilon * np.exp2(self.mu) / (1 - np.float64(self.n_vocab) ** -epsilon)) ** (1 / s)
        return top_k(candidates, int(np.clip(np.nan_to_num(k, nan=1.0), 1, candidates.ids.size)))

    def remember(self, _: Candidates, left: Candidates, place: int) -> None:
        surprise = -math.log2(probabilities(left.logits)[place])
        self.mu -= self.eta * (surprise - self.tau)


def steepness(best_first: Candidates) -> np.float64:
    """Zipf's exponent by least squares: the probability of the i-th token is about i ** -s."""
    possible = best_first.logits[best_first.logits > -np.inf].astype(np.float64)
    if possible.size < 2:
        return np.float64(np.nan)
    steps = np.diff(np.log(np.arange(1, possible.size + 1)))
    return np.float64(float(-np.diff(possible) @ steps) / float(steps @ steps))


class MirostatV2(Mirostat):
    """The second version drops what surprises by more than mu bits."""

    def left(self, candidates: Candidates) -> Candidates:
        kept = np.flatnonzero(probabilities(candidates.logits) >= 2.0**-self.mu)
        return take(candidates, kept if kept.size else largest(candidates.logits, 1))


class AdaptiveP(Choice):
    """Keeps the probability of what is drawn near `target`, on an average that forgets by `decay` a token.

    Candidates near the probability that is aimed at now are lifted, others fall with the distance (llama.cpp's pull
    request 17927). A negative target draws as usual.
    """

    def __init__(self, target: float, decay: float) -> None:
        self.target, self.decay = target, min(decay, 0.99)
        self.total = 1 / (1 - self.decay)
        self.sum = self.target * self.total

    def left(self, candidates: Candidates) -> Candidates:
        if self.target < 0:
            return candidates
        aim = min(max(2 * self.target - self.sum / self.total, 0.0), 1.0)
        distance = np.abs(probabilities(candidates.logits) - aim) / WIDTH
        hill = PEAK - SHARPNESS * distance**2 / (1 + distance)
        return Candidates(candidates.ids, np.where(candidates.logits > -np.inf, hill, -np.inf))

    def remember(self, candidates: Candidates, _: Candidates, place: int) -> None:
        self.sum = float(probabilities(candidates.logits)[place]) + self.decay * self.sum
        self.total = 1 + self.decay * self.total
