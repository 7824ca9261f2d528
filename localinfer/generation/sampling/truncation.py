"""Samplers that drop candidates. Each is a pure function that returns the remaining ones.

`min_keep` is the minimum number of remaining candidates for samplers that have it; no sampler drops all.
"""

import math

import numpy as np

from .candidates import Candidates, entropy, softmax, take, top_k_positions, unnormalized_probabilities

TOP_P_PREFIXES = (256, 8192)  # top-p tries this many of the most probable tokens before all


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Return the `k` most probable candidates, best first; for k <= 0 all, in their order."""
    if k <= 0:
        return candidates
    return take(candidates, top_k_positions(candidates.logits, k))


def top_p(candidates: Candidates, p: float, min_keep: int = 1) -> Candidates:
    """Return the fewest of the most probable candidates that reach the probability `p` in total (Holtzman et al.,
    2019)."""
    if p >= 1:
        return candidates
    total = unnormalized_probabilities(candidates.logits).sum()
    for k in (*TOP_P_PREFIXES, candidates.ids.size):
        head = take(candidates, top_k_positions(candidates.logits, k))
        cumulative = unnormalized_probabilities(head.logits).cumsum()
        n = max(int(np.searchsorted(cumulative, p * total)) + 1, min_keep)
        if n <= cumulative.size:
            return Candidates(head.ids[:n], head.logits[:n])
    return head


def min_p(candidates: Candidates, p: float, min_keep: int = 1) -> Candidates:
    """Return the candidates with at least `p` times the probability of the best one."""
    if p <= 0:
        return candidates
    floor = candidates.logits.max() + math.log(p)
    positions = np.flatnonzero(candidates.logits >= floor)
    has_minimum = positions.size >= max(1, min_keep)
    return take(candidates, positions if has_minimum else top_k_positions(candidates.logits, max(1, min_keep)))


def typical(candidates: Candidates, p: float, min_keep: int = 1) -> Candidates:
    """Return the fewest of the most typical candidates that exceed the probability `p` in total, most typical first.

    Typical tokens have a surprise near the distribution's entropy (Meister et al., 2022).
    """
    if p >= 1:
        return candidates
    best_first = take(candidates, top_k_positions(candidates.logits, candidates.ids.size))
    probabilities = softmax(best_first.logits)
    with np.errstate(divide="ignore"):
        deviation = np.abs(-np.log(probabilities) - entropy(probabilities))
    order = np.argsort(deviation, kind="stable")
    n = max(int(np.searchsorted(probabilities[order].cumsum(), p, side="right")) + 1, min_keep)
    return take(best_first, order[:n])


def top_n_sigma(candidates: Candidates, n: float) -> Candidates:
    """Exclude candidates with logits more than `n` standard deviations below the largest (Tang et al., 2024)."""
    if n <= 0 or candidates.ids.size <= 1:
        return candidates
    logits = candidates.logits
    finite = logits[logits > -np.inf].astype(np.float64)
    floor = finite.max() - n * finite.std()
    return Candidates(candidates.ids, np.where(logits < floor, -np.inf, logits))


def xtc(candidates: Candidates, threshold: float, min_keep: int = 1) -> Candidates:
    """Return the candidates without all but the least probable of those with at least the probability `threshold`
    (XTC)."""
    above = np.flatnonzero(softmax(candidates.logits) >= threshold)
    dropped = above[top_k_positions(candidates.logits[above], above.size)][:-1]
    if candidates.ids.size - dropped.size < min_keep:
        return candidates
    keep = np.ones(candidates.ids.size, bool)
    keep[dropped] = False
    return take(candidates, np.flatnonzero(keep))
