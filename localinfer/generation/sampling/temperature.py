"""Samplers that make a distribution flatter or steeper."""

import math

import numpy as np

from .candidates import Candidates, entropy, softmax


def temperature(candidates: Candidates, t: float) -> Candidates:
    """Return the candidates with logits divided by `t`; for t <= 0 only the best one."""
    if t <= 0:
        best = int(candidates.logits.argmax())
        return Candidates(candidates.ids[best : best + 1], candidates.logits[best : best + 1])
    logits = candidates.logits.astype(np.float64)
    with np.errstate(over="ignore"):
        if not math.isfinite(logits.max() / t):
            logits -= logits.max()
        return Candidates(candidates.ids, logits / t)


def dynamic_temperature(candidates: Candidates, t: float, span: float, exponent: float) -> Candidates:
    """Apply a temperature between t - span, for a certain distribution, and t + span, for a uniform one.

    In between it depends on entropy / log(n) to the power of `exponent`.
    """
    if candidates.ids.size <= 1:
        return candidates
    lowest, highest = max(0.0, t - span), t + span
    relative_entropy = entropy(softmax(candidates.logits)) / math.log(candidates.ids.size)
    return temperature(candidates, lowest + (highest - lowest) * relative_entropy**exponent)
