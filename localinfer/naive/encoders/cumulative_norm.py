"""The group norm of Gemma 3n's convolutions over a sound: each moment is normalized with all that came before it."""

import numpy as np

from localinfer.naive.formulas import Floats


def cumulative_norm(x: Floats, size: int, weight: Floats, eps: float) -> Floats:
    """Normalize each `size` consecutive rows of x, a moment, by the mean of all rows up to their last one, and by the
    mean squared distance of all rows up to it, each from the mean of its own moment."""
    moments = x.reshape(-1, size * x.shape[1])
    count = moments.shape[1] * (1 + np.arange(len(moments)))
    mean = np.cumsum(moments.sum(axis=1)) / count
    distances = ((moments - mean[:, None]) ** 2).sum(axis=1)
    variance = np.cumsum(distances) / count
    normalized = (moments - mean[:, None]) / np.sqrt(variance + eps)[:, None]
    return (normalized.reshape(x.shape) * weight).astype(x.dtype)
