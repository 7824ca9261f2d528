"""Links that drop candidates. Each is a pure function: it returns those that stay.

`min_keep` is how many stay at least, as far as a link has a say in it: none leaves fewer than one.
"""

import math

import numpy as np

from .candidates import Candidates, entropy, largest, probabilities, take, weights

HEADS = (256, 8192)  # top-p looks at this many of the most probable tokens before it looks at all


def top_k(candidates: Candidates, k: int) -> Candidates:
    """The `k` most probable ones, the best first; k <= 0 keeps all as they are."""
    if k <= 0:
        return candidates
    return take(candidates, largest(candidates.logits, k))


def top_p(candidates: Candidates, p: float, min_keep: int = 1) -> Candidates:
    """The fewest of the most probable ones that reach the probability `p` together (Holtzman et al., 2019)."""
    if p >= 1:
        return candidates
    total = weights(candidates.logits).sum()
    for k in (*HEADS, candidates.ids.size):
        head = take(candidates, largest(candidates.logits, k))
        reached = weights(head.logits).cumsum()
        n = max(int(np.searchsorted(reached, p * total)) + 1, min_keep)
        if n <= reached.size:
            return Candidates(head.ids[:n], head.logits[:n])
    return head


def min_p(candidates: Candidates, p: float, min_keep: int = 1) -> Candidates:
    """Those with at least `p` times the probability of the most probable one, which always stays."""
    if p <= 0:
        return candidates
    floor = candidates.logits.max() + math.log(p)
    kept = np.flatnonzero(candidates.logits >= floor)
    enough = kept.size >= max(1, min_keep)
    return take(candidates, kept if enough else largest(candidates.logits, max(1, min_keep)))


def typical(candidates: Candidates, p: float, min_keep: int = 1) -> Candidates:
    """The fewest of the most typical ones that exceed the probability `p` together, the most typical first.

    Typical is what surprises about as much as the distribution does on average (Meister et al., 2022).
    """
    if p >= 1:
        return candidates
    best_first = take(candidates, largest(candidates.logits, candidates.ids.size))
    shares = probabilities(best_first.logits)
    with np.errstate(divide="ignore"):
        oddness = np.abs(-np.log(shares) - entropy(shares))
    order = np.argsort(oddness, kind="stable")
    n = max(int(np.searchsorted(shares[order].cumsum(), p, side="right")) + 1, min_keep)
    return take(best_first, order[:n])


def top_n_sigma(candidates: Candidates, n: float) -> Candidates:
    """Impossible is what is more than `n` standard deviations of the logits below the largest (Tang et al., 2024)."""
    if n <= 0 or candidates.ids.size <= 1:
        return candidates
    logits = candidates.logits
    counted = logits[logits > -np.inf].astype(np.float64)
    floor = counted.max() - n * counted.std()
    return Candidates(candidates.ids, np.where(logits < floor, -np.inf, logits))


def without_top_choices(candidates: Candidates, threshold: float, min_keep: int = 1) -> Candidates:
    """XTC: of those with at least the probability `threshold`, only the least probable one stays."""
    tops = np.flatnonzero(probabilities(candidates.logits) >= threshold)
    dropped = tops[largest(candidates.logits[tops], tops.size)][:-1]
    if candidates.ids.size - dropped.size < min_keep:
        return candidates
    kept = np.ones(candidates.ids.size, bool)
    kept[dropped] = False
    return take(candidates, np.flatnonzero(kept))
