"""From logits to one token id: llama.cpp's chain of samplers, in its order and with its meanings.

Knows numbers only, neither texts nor models. Each link is a pure function: it takes candidates and returns
those that stay. A vocabulary may have hundreds of thousands of tokens: nothing here lists it in Python.

    repeat penalty -> top-k -> top-p -> min-p -> temperature -> draw          --temp 0: the most probable one

Ties go to the lowest id. A NaN counts as impossible; logits without any possible token are an error. Infinite
logits are certain: they share the whole probability evenly.
"""

import math
import secrets
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError
from localinfer.options import RANDOM_SEED, Options

Floats = NDArray[np.floating]
Ids = NDArray[np.intp]

ROWS = 64  # the vocabulary is cut into columns of this height to find a floor under the k-th largest logit
HEADS = (256, 8192)  # top-p looks at this many of the most probable tokens before it looks at all


class Candidates(NamedTuple):
    """The tokens that may still be chosen."""

    ids: Ids  # (n,)
    logits: Floats  # (n,), the logits of `ids`


class Sampler:
    """Chooses tokens by `options`, with random numbers of its own that begin at `seed`.

    `banned` are ids that are never chosen.
    """

    def __init__(self, options: Options, n_vocab: int, banned: Iterable[int] = ()) -> None:
        self.options = options
        self.seed = chosen_seed(options.seed)
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._vocabulary = np.arange(n_vocab)
        self._banned = np.array(sorted(banned), dtype=np.intp)

    def sample(self, logits: NDArray[np.float32], recent: Sequence[int]) -> int:
        """The next token, by the logits (n_vocab,) after the `recent` ones; `logits` stays as it is."""
        if self.options.temp <= 0:
            return int(self._possible(logits, recent).argmax())
        return draw(self.candidates(logits, recent), self._random.random())

    def candidates(self, logits: NDArray[np.float32], recent: Sequence[int]) -> Candidates:
        """What the draw is made from, for a temperature above 0."""
        options = self.options
        chosen = Candidates(self._vocabulary, self._possible(logits, recent))
        chosen = top_k(chosen, options.top_k)
        chosen = top_p(chosen, options.top_p)
        chosen = min_p(chosen, options.min_p)
        return temperature(chosen, options.temp)

    def _possible(self, logits: Floats, recent: Sequence[int]) -> Floats:
        """The logits without those that are banned or make no sense, and with the penalty."""
        if self._banned.size:
            logits = logits.copy()
            logits[self._banned] = -np.inf
        options = self.options
        return possible(penalized(logits, last(recent, options.repeat_last_n), options.repeat_penalty))


def chosen_seed(seed: int) -> int:
    """The seed itself, or a new one each time where none was chosen."""
    return secrets.randbits(32) if seed == RANDOM_SEED else seed


def possible(logits: Floats) -> Floats:
    """The logits with every NaN at -inf, and beside an infinite one nothing else."""
    peak = logits.max()
    if math.isnan(peak):
        logits = np.where(np.isnan(logits), -np.inf, logits)
        peak = logits.max()
    if peak == -np.inf:
        raise LocalInferError("logits: the model gives no token a probability (all are NaN or -inf)")
    if peak == np.inf:
        return np.where(logits == np.inf, 0.0, -np.inf)
    return logits


def last(recent: Sequence[int], n: int) -> Sequence[int]:
    """The last `n` of the recent tokens; -1 is all of them."""
    return recent if n < 0 else recent[max(0, len(recent) - n):]


def penalized(logits: Floats, recent: Sequence[int], penalty: float) -> Floats:
    """Logits where each distinct recent token is less probable: divided if positive, multiplied if not."""
    if penalty == 1 or not len(recent):
        return logits
    ids = np.unique(np.asarray(recent, dtype=np.intp))
    changed = logits.copy()
    with np.errstate(all="ignore"):  # a tiny penalty may make a logit infinite
        changed[ids] = np.where(logits[ids] > 0, logits[ids] / penalty, logits[ids] * penalty)
    return changed


def top_k(candidates: Candidates, k: int) -> Candidates:
    """The `k` most probable ones, the best first; k <= 0 keeps all as they are."""
    if k <= 0:
        return candidates
    return take(candidates, largest(candidates.logits, k))


def top_p(candidates: Candidates, p: float) -> Candidates:
    """The fewest of the most probable ones that reach the probability `p` together, at least one."""
    if p >= 1:
        return candidates
    total = weights(candidates.logits).sum()
    for k in (*HEADS, candidates.ids.size):
        head = take(candidates, largest(candidates.logits, k))
        reached = weights(head.logits).cumsum()
        n = int(np.searchsorted(reached, p * total)) + 1
        if n <= reached.size:
            return Candidates(head.ids[:n], head.logits[:n])
    return head


def min_p(candidates: Candidates, p: float) -> Candidates:
    """Those with at least `p` times the probability of the most probable one, which always stays."""
    if p <= 0:
        return candidates
    floor = candidates.logits.max() + math.log(p)
    kept = np.flatnonzero(candidates.logits >= floor)
    return take(candidates, kept if kept.size else largest(candidates.logits, 1))


def temperature(candidates: Candidates, t: float) -> Candidates:
    """The same ones, their logits divided by `t` > 0, after a shift of the largest to 0 where it stays."""
    shifted = candidates.logits.astype(np.float64) - candidates.logits.max()
    with np.errstate(over="ignore"):
        return Candidates(candidates.ids, shifted / t)


def draw(candidates: Candidates, u: float) -> int:
    """The one whose share of the probability contains `u`, a number in [0, 1)."""
    reached = weights(candidates.logits).cumsum()
    below_all = min(u * reached[-1], np.nextafter(reached[-1], 0))
    return int(candidates.ids[np.searchsorted(reached, below_all, side="right")])


def weights(logits: Floats) -> NDArray[np.float64]:
    """Probabilities that are not normalized: the largest is 1."""
    shifted: NDArray[np.float64] = logits.astype(np.float64) - logits.max()
    return np.exp(shifted)


def take(candidates: Candidates, places: Ids) -> Candidates:
    return Candidates(candidates.ids[places], candidates.logits[places])


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
