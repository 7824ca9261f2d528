"""Perplexity: how much a text surprises a model, measured as llama-perplexity does.

Of each chunk the second half is scored, so that every token has at least half a chunk before it: the logits after the
tokens n_ctx/2 .. n_ctx - 2, each against the token that follows. Perplexity is exp of the mean negative log-likelihood;
its error is the standard error of that mean, carried through the exponential. Knows nothing of text.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer.engine.engine import Engine, Logits

Values = NDArray[np.float64]
Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean, and its standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, values: NDArray[Any]) -> "Mean":
        """Of at least two values."""
        return cls(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)))

    def exp(self) -> "Mean":
        """Its exponential: an error grows with the slope."""
        return Mean(math.exp(self.value), math.exp(self.value) * self.error)

    def sqrt(self) -> "Mean":
        """Its square root."""
        root = math.sqrt(self.value)
        return Mean(root, self.error / (2 * root) if root else 0.0)


def perplexity(engine: Engine, chunks: Iterable[Tokens]) -> Iterator[Mean]:
    """The estimate after each chunk, of all chunks so far.

    Raises LocalInferError when the logits are not finite.
    """
    scores: list[Values] = []
    for chunk in chunks:
        scores.append(np.concatenate([surprise(logits, following) for logits, following in scored(engine, chunk)]))
        require_finite(engine, scores[-1])
        yield Mean.of(np.concatenate(scores)).exp()


def scored(engine: Engine, chunk: Tokens) -> Iterator[tuple[Logits, Tokens]]:
    """The logits of a chunk's second half, float32 (rows, n_vocab), and the tokens that follow, (rows,); in parts."""
    engine.reset()
    at = len(chunk) // 2
    for logits in engine.logits_in_parts(chunk[:-1], skip=at):
        yield logits, chunk[at + 1 : at + 1 + len(logits)]
        at += len(logits)


def require_finite(engine: Engine, scores: Values) -> None:
    """Raise LocalInferError when logits were not finite."""
    if not np.isfinite(scores).all():
        raise engine.file.error("logits", "are not finite numbers")


def surprise(logits: Logits, tokens: Tokens) -> Values:
    """-log p(token) for each row of logits: float64 (rows,)."""
    return np.array([log_sum_exp(row) - float(row[token]) for row, token in zip(logits, tokens, strict=True)])


def log_sum_exp(row: Logits) -> float:
    """log(sum(exp(row)))."""
    top = row.max()
    return float(top) + math.log(np.exp(row - top).sum(dtype=np.float64))
