"""How probable a token was, and which others there were: by the model's own logits, before any sampler."""

import numpy as np

from .candidates import Floats, largest, possible

IMPOSSIBLE = -700.0  # the logarithm of a probability that adds nothing


def log_probabilities(logits: Floats) -> Floats:
    """Natural logarithms, float64, of the probabilities of logits (n,)."""
    shifted = possible(logits).astype(np.float64)
    shifted -= shifted.max()
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def entropy(logprobs: Floats) -> float:
    """How uncertain the choice was, in nats: -sum p log p."""
    likely = logprobs[logprobs > IMPOSSIBLE]
    return max(0.0, -float(np.exp(likely) @ likely))


def most_probable(logprobs: Floats, n: int) -> list[tuple[int, float]]:
    """The `n` most probable tokens, the best first, each with the logarithm of its probability."""
    ids = largest(logprobs, n)
    return list(zip(ids.tolist(), logprobs[ids].tolist(), strict=True))
