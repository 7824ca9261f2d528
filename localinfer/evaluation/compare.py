"""Comparison of two models on a text: the metrics of llama-perplexity --kl-divergence, for quantized models.

Both models evaluate the same chunks in step, a few rows of logits at a time, so no logits are stored. The first model
is the base. `localinfer.evaluation.perplexity` defines which tokens are scored and what the error of a mean is.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UsageError
from localinfer.evaluation.perplexity import Mean, Tokens, Values, require_finite, score_chunk
from localinfer.gguf.reader import StringArray
from localinfer.runtime.batch import Logits
from localinfer.runtime.engine import Engine
from localinfer.tokenizer.vocabulary import TOKENS

QUANTILES = (1.0, 0.999, 0.99, 0.95, 0.9, 0.5, 0.1, 0.05, 0.01, 0.001, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """One value per scored token."""

    base: Values  # -log p(token) of the base
    other: Values  # -log p(token) of the other model
    divergence: Values  # KL(base || other) of the next-token distributions, in nats
    same_top: NDArray[np.bool_]  # whether both have the same most probable token

    @classmethod
    def concatenate(cls, scores: Iterable["Scores"]) -> "Scores":
        """Return all scores in one object."""
        columns = zip(*([getattr(each, field.name) for field in fields(cls)] for each in scores), strict=True)
        return cls(*map(np.concatenate, columns))


def compare(base: Engine, other: Engine, chunks: Iterable[Tokens]) -> Iterator[Scores]:
    """Yield, after each chunk, the scores of all chunks so far.

    The engines must have equal --ctx-size and --batch-size.

    Raises UsageError before evaluating anything if the vocabularies differ, and LocalInferError if logits are not
    finite.
    """
    require_same_vocabulary(base, other)
    scores: list[Scores] = []
    for chunk in chunks:
        both = zip(score_chunk(base, chunk), score_chunk(other, chunk), strict=True)
        scores.append(Scores.concatenate(score(p, q, tokens) for (p, tokens), (q, _) in both))
        require_finite(base, scores[-1].base)
        require_finite(other, scores[-1].other)
        yield Scores.concatenate(scores)


def require_same_vocabulary(base: Engine, other: Engine) -> None:
    """Raise UsageError unless both models have the same vocabulary."""
    ours, theirs = ([bytes(token) for token in engine.file.get(TOKENS, StringArray)] for engine in (base, other))
    if ours == theirs and base.n_vocab == other.n_vocab:
        return
    at = next((id for id, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    what = f"{len(theirs)} tokens; {base.file.path} has {len(ours)}, and token {at} is the first difference"
    raise UsageError(f"{other.file.path}: {TOKENS}: {what}: only models with the same vocabulary can be compared")


def score(p: Logits, q: Logits, tokens: Tokens) -> Scores:
    """Return the scores of some tokens. `p` and `q` are the logits of the two models, (tokens, n_vocab)."""
    rows = [score_row(*row) for row in zip(p, q, tokens, strict=True)]
    base, other, divergence, same_top = zip(*rows, strict=True)
    return Scores(np.array(base), np.array(other), np.array(divergence), np.array(same_top))


def score_row(p: Logits, q: Logits, token: int) -> tuple[float, float, float, bool]:
    """Return the fields of `Scores` for one token.

    KL = sum p (log p - log q) = sum p (a - b) - (log sum exp a - log sum exp b) for logits a and b. Their difference is
    exact if they are close, and 0 if they are equal.
    """
    a, b = p - p.max(), q - q.max()
    weight = np.exp(a)
    total_p, total_q = weight.sum(dtype=np.float64), np.exp(b).sum(dtype=np.float64)
    log_p, log_q = float(np.log(total_p)), float(np.log(total_q))
    mean_difference = float((weight * (a - b)).sum(dtype=np.float64)) / float(total_p)
    same = bool(p.argmax() == q.argmax())
    return log_p - float(a[token]), log_q - float(b[token]), mean_difference - (log_p - log_q), same


# --- summary ---


@dataclass(frozen=True, slots=True)
class Distribution:
    """A mean with its standard error, and a value for each of QUANTILES."""

    mean: Mean
    quantiles: Mapping[float, float]

    @classmethod
    def of(cls, values: Values) -> "Distribution":
        """Return the distribution of some values."""
        quantiles = np.quantile(values, QUANTILES).tolist()
        return cls(Mean.of(values), dict(zip(QUANTILES, quantiles, strict=True)))


@dataclass(frozen=True, slots=True)
class Summary:
    """Metrics over all scored tokens."""

    tokens: int
    perplexity_base: Mean
    perplexity: Mean
    log_ratio: Mean  # ln(perplexity / perplexity_base), the mean difference of log probability
    ratio: Mean
    difference: Mean  # of the perplexities
    correlation: float  # of the tokens' log probabilities
    divergence: Distribution  # KL(base || other), in nats
    probability: Distribution  # p(token) of the other less that of the base
    probability_rms: Mean
    same_top: Mean  # from 0 to 1


def summarize(scores: Scores) -> Summary:
    """Return the metrics of llama-perplexity --kl-divergence.

    Errors account for the correlation between the two models.
    """
    ppl_base, ppl = Mean.of(scores.base).exp(), Mean.of(scores.other).exp()
    log_ratio = Mean.of(scores.other - scores.base)
    slopes = ppl.value * scores.other - ppl_base.value * scores.base
    change = np.exp(-scores.other) - np.exp(-scores.base)
    return Summary(
        tokens=len(scores.base),
        perplexity_base=ppl_base,
        perplexity=ppl,
        log_ratio=log_ratio,
        ratio=log_ratio.exp(),
        difference=Mean(ppl.value - ppl_base.value, Mean.of(slopes).error),
        correlation=float(np.corrcoef(scores.base, scores.other)[0, 1]),
        divergence=Distribution.of(scores.divergence),
        probability=Distribution.of(change),
        probability_rms=Mean.of(np.square(change)).sqrt(),
        same_top=Mean.of(scores.same_top.astype(np.float64)),
    )
