"""How far two models are from each other on a text: what llama-perplexity --kl-divergence tells of a quantized model.

Both models read the same chunks side by side, a few rows of logits at a time, so that nothing has to be kept: the
logits of a long text would fill a disk. The first one is the base, from which the second departs. What is scored, and
what the error of a mean is, is said in `localinfer.judging.perplexity`. Knows nothing of text.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from localinfer.engine.engine import Engine, Logits
from localinfer.errors import UsageError
from localinfer.files.gguf import StringArray
from localinfer.judging.perplexity import Mean, Tokens, Values, require_finite, scored

QUANTILES = (1.0, 0.999, 0.99, 0.95, 0.9, 0.5, 0.1, 0.05, 0.01, 0.001, 0.0)
TOKENS = "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """A value for each token that was scored."""

    base: Values  # -log p(token) by the base
    other: Values  # and by the other model
    divergence: Values  # KL(base || other) of all that could follow, in nats
    same_top: NDArray[np.bool_]  # whether both expect the same token most

    @classmethod
    def joined(cls, parts: Iterable["Scores"]) -> "Scores":
        """Of all tokens of some parts."""
        columns = zip(*([getattr(part, field.name) for field in fields(cls)] for part in parts), strict=True)
        return cls(*map(np.concatenate, columns))


def compare(base: Engine, other: Engine, chunks: Iterable[Tokens]) -> Iterator[Scores]:
    """The scores after each chunk, of all chunks so far. The engines have the same --ctx-size and --batch-size.

    Raises UsageError, before anything is read, for models with other vocabularies, LocalInferError when logits are not
    finite.
    """
    require_same_vocabulary(base, other)
    found: list[Scores] = []
    for chunk in chunks:
        both = zip(scored(base, chunk), scored(other, chunk), strict=True)
        found.append(Scores.joined(score(p, q, tokens) for (p, tokens), (q, _) in both))
        require_finite(base, found[-1].base)
        require_finite(other, found[-1].other)
        yield Scores.joined(found)


def require_same_vocabulary(base: Engine, other: Engine) -> None:
    """Raise UsageError unless both models mean the same by every token."""
    ours, theirs = ([bytes(token) for token in engine.file.get(TOKENS, StringArray)] for engine in (base, other))
    if ours == theirs and base.n_vocab == other.n_vocab:
        return
    at = next((id for id, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    what = f"{len(theirs)} tokens, token {at} is the first that is not that of {base.file.path} with {len(ours)}"
    raise UsageError(f"{other.file.path}: {TOKENS}: {what}: only models of one vocabulary can be compared")


def score(p: Logits, q: Logits, tokens: Tokens) -> Scores:
    """Of some tokens: `p` are the base's logits, `q` the other's, float32 (tokens, n_vocab)."""
    rows = [score_row(*row) for row in zip(p, q, tokens, strict=True)]
    base, other, divergence, same_top = zip(*rows, strict=True)
    return Scores(np.array(base), np.array(other), np.array(divergence), np.array(same_top))


def score_row(p: Logits, q: Logits, token: int) -> tuple[float, float, float, bool]:
    """The fields of `Scores` for one token.

    KL = sum p (log p - log q) = sum p (a - b) - (log sum exp a - log sum exp b) for logits a and b: their difference
    is exact where they are close, and 0 where they are equal.
    """
    a, b = p - p.max(), q - q.max()
    weight = np.exp(a)
    total_p, total_q = weight.sum(dtype=np.float64), np.exp(b).sum(dtype=np.float64)
    log_p, log_q = float(np.log(total_p)), float(np.log(total_q))
    apart = float((weight * (a - b)).sum(dtype=np.float64)) / float(total_p)
    same = bool(p.argmax() == q.argmax())
    return log_p - float(a[token]), log_q - float(b[token]), apart - (log_p - log_q), same


# --- what is told of them ---


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean with its standard error, and the values below which a part of all lies, by QUANTILES."""

    mean: Mean
    quantiles: Mapping[float, float]

    @classmethod
    def of(cls, values: Values) -> "Spread":
        found = np.quantile(values, QUANTILES).tolist()
        return cls(Mean.of(values), dict(zip(QUANTILES, found, strict=True)))


@dataclass(frozen=True, slots=True)
class Summary:
    """Of all tokens that were scored."""

    tokens: int
    perplexity_base: Mean
    perplexity: Mean
    log_ratio: Mean  # ln(perplexity / perplexity_base), the mean difference of log probability
    ratio: Mean
    difference: Mean  # of the perplexities
    correlation: float  # of the tokens' log probabilities
    divergence: Spread  # KL(base || other), in nats
    probability: Spread  # p(token) of the other less that of the base
    probability_rms: Mean
    same_top: Mean  # a part of 1


def summary(scores: Scores) -> Summary:
    """The figures of llama-perplexity --kl-divergence. Errors take into account that both models read the same text."""
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
        divergence=Spread.of(scores.divergence),
        probability=Spread.of(change),
        probability_rms=Mean.of(np.square(change)).sqrt(),
        same_top=Mean.of(scores.same_top.astype(np.float64)),
    )
