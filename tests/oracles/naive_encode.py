"""The oracle of the scale searches: the same objective in plain numpy and float64, one group after the other.

Scales and mins keep full precision, so the remaining error is that of the codes alone.
"""

from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def error_weights(x: Floats, m: Floats, length: int, superblock: int, strength: float) -> Floats:
    """Return the error weights of the weights x, (rows, n), whose columns have importance m, (n,).

    Groups have `length` columns, `superblock` columns share a superblock, and `strength` scales the fraction. See
    `quant.encoders.objective`.
    """
    groups = np.broadcast_to(m.astype(np.float64), x.shape).reshape(-1, length)
    fraction = strength * groups.sum(axis=1) ** 2 / (length * (groups**2).sum(axis=1))
    squares = x.astype(np.float64).reshape(-1, superblock) ** 2
    factor = np.sqrt(1 + squares / squares.mean(axis=1, keepdims=True)).reshape(-1, length)
    return (groups * (1 + fraction[:, None] * (factor - 1))).reshape(x.shape)


def nearest(x: Floats, scale: float, minimum: float, levels: int, zero: int = 0) -> Floats:
    """Return the nearest codes of a group; the least code is -zero."""
    steps = (x - minimum) / scale if scale else np.zeros_like(x)
    return np.clip(np.rint(steps), -zero, levels - 1 - zero)


def error(x: Floats, w: Floats, codes: Floats, scale: float, minimum: float) -> float:
    """Return the weighted squared error of a group."""
    return float((w * (x - scale * codes - minimum) ** 2).sum())


def fit(x: Floats, w: Floats, codes: Floats, below_zero: bool) -> tuple[float, float]:
    """Return the least-squares scale and min for given codes."""
    free = np.stack([codes, np.ones_like(codes)], axis=1) * np.sqrt(w)[:, None]
    scale, minimum = np.linalg.lstsq(free, x * np.sqrt(w), rcond=None)[0]
    if below_zero and (minimum > 0 or np.ptp(codes) == 0):
        scale, minimum = (w * codes * x).sum() / max((w * codes**2).sum(), 1e-300), 0.0
    return scale, minimum


def affine(x: Floats, w: Floats, levels: int, ends: int, distance: float, below_zero: bool) -> tuple[float, float]:
    """Return the best scale and min of a group.

    Try ranges whose two ends are moved by `ends` steps of size `step`, and round once more.
    """
    low, high = x.min(), x.max()
    if below_zero:
        low = min(low, 0.0)
        high = max(high, low)
    moves = distance * (np.arange(ends) - ends // 2) * (high - low) / (levels - 1)
    starts = [(low + i, (high - j - low - i) / (levels - 1)) for i, j in product(moves, moves)]
    flat = min(np.average(x, weights=w), 0.0) if below_zero else np.average(x, weights=w)
    least_error, scale, minimum = error(x, w, np.zeros_like(x), 0.0, flat), 0.0, flat
    for start, step in [*starts, (None, None)]:
        codes = nearest(x, step if step is not None else scale, start if start is not None else minimum, levels)
        fitted = fit(x, w, codes, below_zero)
        if (actual := error(x, w, codes, *fitted)) < least_error:
            least_error, (scale, minimum) = actual, fitted
    return scale, minimum


def symmetric(x: Floats, w: Floats, zero: int, tried: int, less: float, more: float) -> float:
    """Return the best scale of a group with codes from -zero to zero - 1.

    Map the weight of largest magnitude to several codes around the outermost ones, and round once more.
    """
    peak = x[np.argmax(abs(x))]
    moves = np.linspace(-less, more, tried)
    least_error, scale = float((w * x**2).sum()), 0.0
    for step in [*(peak / (zero - 1 + moves)), *(-peak / (zero + moves)), None]:
        codes = nearest(x, scale if step is None else step, 0.0, 2 * zero, zero)
        fitted = (w * codes * x).sum() / max((w * codes**2).sum(), 1e-300)
        if (actual := error(x, w, codes, fitted, 0.0)) < least_error:
            least_error, scale = actual, fitted
    return scale
