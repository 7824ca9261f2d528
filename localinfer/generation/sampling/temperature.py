"""Links that make a distribution flatter or steeper."""

import math

import numpy as np

from .candidates import Candidates, entropy, probabilities


def temperature(candidates: Candidates, t: float) -> Candidates:
    """The same ones, their logits divided by `t`; t <= 0 keeps only the best."""
    if t <= 0:
        best = int(candidates.logits.argmax())
        return Candidates(candidates.ids[best : best + 1], candidates.logits[best : best + 1])
    logits = candidates.logits.astype(np.float64)
    with np.errstate(over="ignore"):
        if not math.isfinite(logits.max() / t):
            logits -= logits.max()
        return Candidates(candidates.ids, logits / t)


def dynamic_temperature(candidates: Candidates, t: float, span: float, exponent: float) -> Candidates:
    """A temperature between t - span, where the model is certain, and t + span, where all tokens are as probable.

    Between them it goes with entropy / log(n) to the power of `exponent`.
    """
    if candidates.ids.size <= 1:
        return candidates
    certain, uncertain = max(0.0, t - span), t + span
    doubt = entropy(probabilities(candidates.logits)) / math.log(candidates.ids.size)
    return temperature(candidates, certain + (uncertain - certain) * doubt**exponent)
