"""Beam search: looks for the text that the model finds most probable, among more than one way to go on.

In each step every one of the n best hypotheses is continued with every token, and the n best of the results are kept.
A hypothesis that ends is set aside. Its score is its log-probability divided by its number of tokens: without the
division short texts would always win. Knows numbers only.
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
    """One way in which the prompt may go on. The token that ends it is not among `ids`, but counts in the others."""

    ids: list[int]
    logprob: float  # the sum of all tokens' log-probabilities
    length: int  # tokens

    @property
    def score(self) -> float:
        return self.logprob / max(1, self.length)

    def followed_by(self, id: int, logprob: float) -> "Hypothesis":
        return Hypothesis([*self.ids, id], self.logprob + logprob, self.length + 1)

    def without_end(self) -> "Hypothesis":
        return self._replace(ids=self.ids[:-1])


class BeamSearch:
    """A search with `beams` hypotheses of at most `limit` tokens; the tokens `ends` end a hypothesis.

    It is over when as many hypotheses have ended as there are beams, and none of the others has a better score.
    """

    def __init__(self, logprobs_after: LogProbabilitiesAfter, beams: int, ends: Collection[int], limit: int) -> None:
        self._logprobs_after, self._beams, self._ends, self._limit = logprobs_after, beams, ends, limit
        self._live = [Hypothesis([], 0.0, 0)]
        self._ended: list[Hypothesis] = []

    def __iter__(self) -> Iterator[int]:
        """The tokens of the best text, each as soon as all hypotheses that are left agree on it."""
        given = 0
        for _ in range(self._limit):
            self._step()
            if self._is_over:
                self._live = []
                break
            agreed = agreement([each.ids for each in self._live + self._ended])
            yield from agreed[given:]
            given = len(agreed)
        yield from self.best.ids[given:]

    @property
    def best(self) -> Hypothesis:
        return max(self._ended + self._live, key=attrgetter("score"))

    @property
    def best_has_ended(self) -> bool:
        """Whether the best hypothesis has ended; otherwise it has reached the limit."""
        return self.best in self._ended

    @property
    def _is_over(self) -> bool:
        if not self._live:
            return True
        return len(self._ended) == self._beams and max(each.score for each in self._live) <= self._ended[-1].score

    def _step(self) -> None:
        """Make each hypothesis longer by one token."""
        wanted = 2 * self._beams  # half of them may end
        best = heapq.nlargest(wanted, self._continued(wanted), key=attrgetter("logprob"))
        over = [each.without_end() for each in best[: self._beams] if each.ids[-1] in self._ends]
        self._live = [each for each in best if each.ids[-1] not in self._ends][: self._beams]
        self._ended = heapq.nlargest(self._beams, self._ended + over, key=attrgetter("score"))

    def _continued(self, wanted: int) -> Iterator[Hypothesis]:
        """The `wanted` best continuations of each hypothesis. They are asked for in the order of their ids: neighbours
        then have most tokens in common, and the engine has to forget least between them."""
        for each in sorted(self._live, key=attrgetter("ids")):
            for id, logprob in most_probable(self._logprobs_after(each.ids), wanted):
                if logprob > -np.inf:
                    yield each.followed_by(id, logprob)


def agreement(texts: Sequence[Sequence[int]]) -> list[int]:
    """The tokens with which all of them begin."""
    alike = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*texts, strict=False))
    return [first for first, *_ in alike]
