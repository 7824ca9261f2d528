"""The tokens that may still be chosen, and what all links of the chain do with them.

A vocabulary may have hundreds of thousands of tokens: nothing here lists it in Python. Ties go to the lowest id.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError

Floats = NDArray[np.floating]
Ids = NDArray[np.intp]

ROWS = 64  # the vocabulary is cut into columns of this height to find a floor under the k-th largest logit


class Candidates(NamedTuple):
    """A logit of -inf is an impossible token: it counts as a candidate, but is never drawn."""

    ids: Ids  # (n,), each once
    logits: Floats  # (n,), the logits of `ids`


def possible(logits: Floats) -> Floats:
    """The logits with every NaN at -inf, and beside an infinite one nothing else.

    LocalInferError where no token is left.
    """
    peak = logits.max()
    if math.isnan(peak):
        logits = np.where(np.isnan(logits), -np.inf, logits)
        peak = logits.max()
    if peak == -np.inf:
        raise LocalInferError("logits: the model gives no token a probability (all are NaN or -inf)")
    if peak == np.inf:
        return np.where(logits == np.inf, 0.0, -np.inf)
    return logits


def weights(logits: Floats) -> NDArray[np.float64]:
    """Probabilities that are not normalized: the largest is 1."""
    shifted: NDArray[np.float64] = logits.astype(np.float64) - logits.max()
    return np.exp(shifted)


def probabilities(logits: Floats) -> NDArray[np.float64]:
    shares = weights(logits)
    shares /= shares.sum()
    return shares


def entropy(shares: NDArray[np.float64]) -> float:
    """Of probabilities, in nats."""
    certain = shares[shares > 0]
    return float(-(certain * np.log(certain)).sum())


def take(candidates: Candidates, places: Ids) -> Candidates:
    return Candidates(candidates.ids[places], candidates.logits[places])


def find(candidates: Candidates, ids: Ids) -> tuple[Ids, Ids]:
    """Where the tokens `ids`, in ascending order, are among the candidates; and which of `ids` these are."""
    if not ids.size:
        return ids, ids
    if ids[-1] < candidates.ids.size and (candidates.ids[ids] == ids).all():  # still the whole vocabulary, in order
        return ids, np.arange(ids.size)
    places = np.flatnonzero(np.isin(candidates.ids, ids))
    return places, np.searchsorted(ids, candidates.ids[places])


def largest(logits: Floats, k: int) -> Ids:
    """Where the `k` largest logits are, the largest first, the lower place first among equals.

    At least k columns have a maximum not below the k-th largest maximum, so at least k logits are not below
    that. This floor leaves little more than k places to sort, and finding it is a pass at memory speed.
    """
    n_columns = logits.size // ROWS
    if k < n_columns:
        maxima = logits[: ROWS * n_columns].reshape(ROWS, n_columns).max(axis=0)
        floor = np.partition(maxima, n_columns - k)[n_columns - k]
        places = np.flatnonzero(logits >= floor)
    else:
        places = np.arange(logits.size)
    order = np.argsort(-logits[places], kind="stable")
    return places[order[:k]]
