"""How probable a token was, and which others there were: by the model's own logits, before any sampler."""

import numpy as np

from .candidates import Floats, largest, possible


def log_probabilities(logits: Floats) -> Floats:
    """Natural logarithms, float64, of the probabilities of logits (n,)."""
    shifted = possible(logits).astype(np.float64)
    shifted -= shifted.max()
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def most_probable(logprobs: Floats, n: int) -> list[tuple[int, float]]:
    """The `n` most probable tokens, the best first, each with the logarithm of its probability."""
    ids = largest(logprobs, n)
    return list(zip(ids.tolist(), logprobs[ids].tolist(), strict=True))
