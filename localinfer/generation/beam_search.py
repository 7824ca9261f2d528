"""Beam search: the search for the most probable text with several hypotheses.

Each step extends each of the n best hypotheses by every token and keeps the n best results. A hypothesis that ends is
set aside. The score of a hypothesis is its log-probability divided by its number of tokens; without the division short
texts would always win.
"""

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.generation.sampling.logprobs import most_probable

LogProbabilitiesAfter = Callable[[Sequence[int]], NDArray[np.floating]]
"""Log-probabilities of all tokens, (n_vocab,), after the prompt and these ids."""


class Hypothesis(NamedTuple):
    """A possible continuation of the prompt. Its end token is not in `ids`, but counts in `logprob` and `length`."""

    ids: list[int]
    logprob: float  # the sum of all tokens' log-probabilities
    length: int  # number of tokens

    @property
    def score(self) -> float:
        """Return the mean log-probability of the tokens."""
        return self.logprob / max(1, self.length)

    def extended(self, id: int, logprob: float) -> "Hypothesis":
        """Return the hypothesis with one more token."""
        return Hypothesis([*self.ids, id], self.logprob + logprob, self.length + 1)

    def without_end(self) -> "Hypothesis":
        """Return the hypothesis without its last id; log-probability and length stay."""
        return self._replace(ids=self.ids[:-1])


class BeamSearch:
    """A search with `n_beams` hypotheses of at most `max_tokens` tokens. The tokens `end_ids` end a hypothesis.

    It stops when `n_beams` hypotheses have ended and none of the others has a better score.
    """

    def __init__(
        self, logprobs_after: LogProbabilitiesAfter, n_beams: int, end_ids: Collection[int], max_tokens: int
    ) -> None:
        self._logprobs_after, self._n_beams, self._end_ids, self._max_tokens = (
            logprobs_after,
            n_beams,
            end_ids,
            max_tokens,
        )
        self._live = [Hypothesis([], 0.0, 0)]
        self._finished: list[Hypothesis] = []

    def __iter__(self) -> Iterator[int]:
        """Yield the tokens of the best text, each as soon as all remaining hypotheses agree on it."""
        n_yielded = 0
        for _ in range(self._max_tokens):
            self._step()
            if self._is_finished:
                self._live = []
                break
            agreed = common_prefix([hypothesis.ids for hypothesis in self._live + self._finished])
            yield from agreed[n_yielded:]
            n_yielded = len(agreed)
        yield from self.best.ids[n_yielded:]

    @property
    def best(self) -> Hypothesis:
        """The hypothesis with the best score."""
        return max(self._finished + self._live, key=attrgetter("score"))

    @property
    def is_best_finished(self) -> bool:
        """Whether the best hypothesis has ended. Otherwise it has reached the maximum length."""
        return self.best in self._finished

    @property
    def _is_finished(self) -> bool:
        if not self._live:
            return True
        return (
            len(self._finished) == self._n_beams
            and max(hypothesis.score for hypothesis in self._live) <= self._finished[-1].score
        )

    def _step(self) -> None:
        """Extend each hypothesis by one token."""
        n_candidates = 2 * self._n_beams  # up to half of them end
        candidates = heapq.nlargest(n_candidates, self._continuations(n_candidates), key=attrgetter("logprob"))
        finished = [
            hypothesis.without_end()
            for hypothesis in candidates[: self._n_beams]
            if hypothesis.ids[-1] in self._end_ids
        ]
        self._live = [hypothesis for hypothesis in candidates if hypothesis.ids[-1] not in self._end_ids][
            : self._n_beams
        ]
        self._finished = heapq.nlargest(self._n_beams, self._finished + finished, key=attrgetter("score"))

    def _continuations(self, n_best: int) -> Iterator[Hypothesis]:
        """Yield the `n_best` best continuations of each hypothesis.

        Hypotheses are evaluated in the order of their ids: neighbours then have the longest common prefixes, and the
        engine discards the fewest tokens between them.
        """
        for hypothesis in sorted(self._live, key=attrgetter("ids")):
            for id, logprob in most_probable(self._logprobs_after(hypothesis.ids), n_best):
                if logprob > -np.inf:
                    yield hypothesis.extended(id, logprob)


def common_prefix(texts: Sequence[Sequence[int]]) -> list[int]:
    """Return the tokens with which all texts begin."""
    common = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*texts, strict=False))
    return [first for first, *_ in common]
