"""Beam search: of all texts the one that the model finds most probable, as far as some beams see.

Knows numbers only. In each step every one of the n best hypotheses is continued with every token, and the n best of
what comes of it are kept. One that ends is out of the race, with its log-probability a token as its score: without the
division short texts would always win.
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
"""Of every token, (n_vocab,), behind the prompt and these ids."""


class Hypothesis(NamedTuple):
    """Tokens behind the prompt. The one that ended it is not among `ids`, but counts in the rest."""

    ids: list[int]
    logprob: float  # the sum of all
    length: int

    @property
    def score(self) -> float:
        return self.logprob / max(1, self.length)

    def followed_by(self, id: int, logprob: float) -> "Hypothesis":
        return Hypothesis([*self.ids, id], self.logprob + logprob, self.length + 1)

    def without_end(self) -> "Hypothesis":
        return self._replace(ids=self.ids[:-1])


class BeamSearch:
    """Searches with `beams` hypotheses of at most `limit` tokens; `ends` are tokens that end one.

    It is over when as many have ended as there are beams, and none that goes on has a better score than they.
    """

    def __init__(self, logprobs_after: LogProbabilitiesAfter, beams: int, ends: Collection[int], limit: int) -> None:
        self._logprobs_after, self._beams, self._ends, self._limit = logprobs_after, beams, ends, limit
        self._live = [Hypothesis([], 0.0, 0)]
        self._ended: list[Hypothesis] = []

    def __iter__(self) -> Iterator[int]:
        """The tokens of the text that wins, each as soon as no hypothesis is left that has another one in its place."""
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
        """Or had it no room to go on?"""
        return self.best in self._ended

    @property
    def _is_over(self) -> bool:
        if not self._live:
            return True
        return len(self._ended) == self._beams and max(each.score for each in self._live) <= self._ended[-1].score

    def _step(self) -> None:
        """Each hypothesis becomes longer by a token."""
        wanted = 2 * self._beams  # half of them may end
        best = heapq.nlargest(wanted, self._continued(wanted), key=attrgetter("logprob"))
        over = [each.without_end() for each in best[: self._beams] if each.ids[-1] in self._ends]
        self._live = [each for each in best if each.ids[-1] not in self._ends][: self._beams]
        self._ended = heapq.nlargest(self._beams, self._ended + over, key=attrgetter("score"))

    def _continued(self, wanted: int) -> Iterator[Hypothesis]:
        """Neighbours in the order of their ids have most tokens in common: a cache has to forget least between them."""
        for each in sorted(self._live, key=attrgetter("ids")):
            for id, logprob in most_probable(self._logprobs_after(each.ids), wanted):
                if logprob > -np.inf:
                    yield each.followed_by(id, logprob)


def agreement(texts: Sequence[Sequence[int]]) -> list[int]:
    """The tokens with which all of them begin."""
    alike = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*texts, strict=False))
    return [first for first, *_ in alike]
