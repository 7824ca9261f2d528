"""Predictions of the next token, from rows of logits."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


class Predictions(NamedTuple):
    """The most probable tokens, `ids` (rows, top), the most probable first, with their `probabilities`. `entropies` of
    all tokens' probabilities, (rows,), are in bits.

    Each row has a token of interest: `ranks` and `token_probabilities`, (rows,), are its own. The best rank is 0.
    """

    ids: Ids
    probabilities: Floats
    entropies: Floats
    ranks: Ids
    token_probabilities: Floats

    @classmethod
    def of_logits(cls, logits: Floats, tokens: Ids, top: int) -> Self:
        """Return the predictions of rows of logits, with the tokens of interest."""
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        largest = np.argpartition(-logits, min(top, logits.shape[1]) - 1, axis=1)[:, :top]
        order = np.argsort(-np.take_along_axis(logits, largest, axis=1), axis=1, kind="stable")
        ids = np.take_along_axis(largest, order, axis=1)
        bits = -np.log2(p, out=np.zeros_like(p), where=p > 0)
        ranks = (logits > np.take_along_axis(logits, tokens[:, None], axis=1)).sum(axis=1)
        own = np.take_along_axis(p, tokens[:, None], axis=1)[:, 0]
        return cls(ids, np.take_along_axis(p, ids, axis=1), (p * bits).sum(axis=1), ranks, own)

    @classmethod
    def of_batches(cls, batches: Iterable[Floats], tokens: Ids, top: int) -> Self:
        """Return the predictions of logits that come several rows at a time."""
        parts, first = list[Self](), 0
        for logits in batches:
            parts.append(cls.of_logits(logits, tokens[first : first + len(logits)], top))
            first += len(logits)
        return cls(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def predicted_lines(ids: Ids, probabilities: Floats, texts: Mapping[int, str]) -> str:
    """Return the predictions of a row with their probabilities, on a line each."""
    pairs = zip(ids.tolist(), probabilities.tolist(), strict=True)
    return "\n".join(f"{p:.1%} {texts[id]!r}" for id, p in pairs)
