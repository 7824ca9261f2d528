"""Candidate tokens, and functions that all samplers use.

A vocabulary may have hundreds of thousands of tokens, so all loops over it are in numpy. Ties go to the lowest id.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError

Floats = NDArray[np.floating]
Ids = NDArray[np.intp]

ROWS = 64  # height of the columns that bound the k-th largest logit


class Candidates(NamedTuple):
    """Tokens that may still be chosen. One with a logit of -inf is a candidate, but is never drawn."""

    ids: Ids  # (n,), unique
    logits: Floats  # (n,), the logits of `ids`


def sanitize_logits(logits: Floats) -> Floats:
    """Return the logits with NaN replaced by -inf. If a logit is infinite, all finite ones become -inf.

    Raises LocalInferError if no token is possible.
    """
    peak = logits.max()
    if math.isnan(peak):
        logits = np.where(np.isnan(logits), -np.inf, logits)
        peak = logits.max()
    if peak == -np.inf:
        raise LocalInferError("logits: no token is possible (all are NaN or -inf)")
    if peak == np.inf:
        return np.where(logits == np.inf, 0.0, -np.inf)
    return logits


def unnormalized_probabilities(logits: Floats) -> NDArray[np.float64]:
    """Return probabilities scaled so that the largest is 1."""
    shifted: NDArray[np.float64] = logits.astype(np.float64) - logits.max()
    return np.exp(shifted)


def softmax(logits: Floats) -> NDArray[np.float64]:
    """Return the probabilities of logits, float64."""
    probabilities = unnormalized_probabilities(logits)
    probabilities /= probabilities.sum()
    return probabilities


def entropy(p: NDArray[np.float64]) -> float:
    """Return the entropy of probabilities in nats."""
    positive = p[p > 0]
    return float(-(positive * np.log(positive)).sum())


def take(candidates: Candidates, positions: Ids) -> Candidates:
    """Return the candidates at these positions."""
    return Candidates(candidates.ids[positions], candidates.logits[positions])


def find(candidates: Candidates, ids: Ids) -> tuple[Ids, Ids]:
    """Return the positions of the tokens `ids` among the candidates, and the indices of these tokens in `ids`.

    `ids` must be ascending.
    """
    if not ids.size:
        return ids, ids
    if ids[-1] < candidates.ids.size and (candidates.ids[ids] == ids).all():  # still the whole vocabulary, in order
        return ids, np.arange(ids.size)
    positions = np.flatnonzero(np.isin(candidates.ids, ids))
    return positions, np.searchsorted(ids, candidates.ids[positions])


def top_k_positions(logits: Floats, k: int) -> Ids:
    """Return the positions of the `k` largest logits, largest first; among equals the lower position first.

    At least k columns have a maximum that is not below the k-th largest column maximum, so at least k logits are not
    below it. This bound leaves few more than k logits to sort, and takes one pass at memory bandwidth.
    """
    n_columns = logits.size // ROWS
    if k < n_columns:
        maxima = logits[: ROWS * n_columns].reshape(ROWS, n_columns).max(axis=0)
        floor = np.partition(maxima, n_columns - k)[n_columns - k]
        positions = np.flatnonzero(logits >= floor)
    else:
        positions = np.arange(logits.size)
    order = np.argsort(-logits[positions], kind="stable")
    return positions[order[:k]]
