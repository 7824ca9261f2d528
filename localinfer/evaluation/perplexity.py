"""Perplexity of a model on a text, as llama-perplexity measures it.

The second half of each chunk is scored, so that every token has at least half a chunk of context: the logits after the
tokens n_ctx/2 .. n_ctx - 2, each against the token that follows. Perplexity is exp of the mean negative log-likelihood;
its error is the standard error of that mean, propagated through the exponential.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer.runtime.batch import Logits
from localinfer.runtime.engine import Engine
from localinfer.runtime.sequence_engine import SequenceEngine

Values = NDArray[np.float64]
Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and its standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, values: NDArray[Any]) -> "Mean":
        """Return the mean of at least two values."""
        return cls(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)))

    def exp(self) -> "Mean":
        """Return the exponential, with the error scaled by the derivative."""
        return Mean(math.exp(self.value), math.exp(self.value) * self.error)

    def sqrt(self) -> "Mean":
        """Return the square root, with the error scaled by the derivative."""
        root = math.sqrt(self.value)
        return Mean(root, self.error / (2 * root) if root else 0.0)


def perplexity(engine: Engine, chunks: Iterable[Tokens]) -> Iterator[Mean]:
    """Yield, after each chunk, the perplexity of all chunks so far.

    Raises LocalInferError if logits are not finite.
    """
    scores: list[Values] = []
    for chunk in chunks:
        scores.append(
            np.concatenate(
                [negative_log_likelihood(logits, following) for logits, following in score_chunk(engine, chunk)]
            )
        )
        require_finite(engine, scores[-1])
        yield Mean.of(np.concatenate(scores)).exp()


def score_chunk(engine: Engine, chunk: Tokens) -> Iterator[tuple[Logits, Tokens]]:
    """Yield the logits of a chunk's second half, (rows, n_vocab), and the next tokens, (rows,), some rows at a time."""
    engine.reset()
    at = len(chunk) // 2
    for logits in engine.logits_in_batches(chunk[:-1], skip=at):
        yield logits, chunk[at + 1 : at + 1 + len(logits)]
        at += len(logits)


def require_finite(engine: SequenceEngine, scores: Values) -> None:
    """Raise LocalInferError if scores are not finite."""
    if not np.isfinite(scores).all():
        raise engine.file.error("logits", "are not finite numbers")


def negative_log_likelihood(logits: Logits, tokens: Tokens) -> Values:
    """Return -log p(token) for each row of logits: float64 (rows,)."""
    return np.array([log_sum_exp(row) - float(row[token]) for row, token in zip(logits, tokens, strict=True)])


def log_sum_exp(row: Logits) -> float:
    """Return log(sum(exp(row)))."""
    top = row.max()
    return float(top) + math.log(np.exp(row - top).sum(dtype=np.float64))
