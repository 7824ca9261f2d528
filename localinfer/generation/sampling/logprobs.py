"""Log-probabilities of tokens by the model's own logits, before any sampler."""

import numpy as np

from .candidates import Floats, sanitize_logits, top_k_positions

MIN_LOGPROB = -700.0  # smaller log-probabilities do not contribute to the entropy


def log_probabilities(logits: Floats) -> Floats:
    """Return natural logarithms, float64, of the probabilities of logits (n,)."""
    shifted = sanitize_logits(logits).astype(np.float64)
    shifted -= shifted.max()
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def entropy(logprobs: Floats) -> float:
    """Return the entropy in nats: -sum p log p."""
    likely = logprobs[logprobs > MIN_LOGPROB]
    return max(0.0, -float(np.exp(likely) @ likely))


def most_probable(logprobs: Floats, n: int) -> list[tuple[int, float]]:
    """Return the `n` most probable tokens, best first, each with its log-probability."""
    ids = top_k_positions(logprobs, n)
    return list(zip(ids.tolist(), logprobs[ids].tolist(), strict=True))
