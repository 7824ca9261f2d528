"""Beam search over Markov chains: with enough beams it finds the best of all texts, with few what a twin finds."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from localinfer.generation.beams import BeamSearch, agreement

END = 0
N_VOCAB = 4


class Chain:
    """The next token depends on the last two."""

    def __init__(self, seed: int) -> None:
        logits = np.random.default_rng(seed).standard_normal((N_VOCAB + 1, N_VOCAB + 1, N_VOCAB)) * 1.5
        self.logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        self.asked: list[list[int]] = []

    def after(self, ids: Sequence[int]) -> np.ndarray:
        self.asked.append(list(ids))
        before, last = [N_VOCAB, N_VOCAB, *ids][-2:]
        return self.logprobs[before, last]

    def logprob(self, ids: Sequence[int]) -> float:
        return sum(self.after(ids[:n])[id] for n, id in enumerate(ids))


def texts(limit: int) -> list[tuple[int, ...]]:
    """All that end, or are of `limit` tokens."""
    words = [id for id in range(N_VOCAB) if id != END]
    ended = [(*each, END) for n in range(limit) for each in itertools.product(words, repeat=n)]
    return ended + list(itertools.product(words, repeat=limit))


@pytest.mark.parametrize("seed", range(10))
def test_with_enough_beams_it_finds_the_best_text_of_all(seed: int) -> None:
    chain = Chain(seed)
    best = max(texts(4), key=lambda ids: chain.logprob(ids) / len(ids))
    search = BeamSearch(chain.after, 200, [END], 4)
    assert tuple(search) == tuple(id for id in best if id != END)
    assert search.best_has_ended == (best[-1] == END)


def twin(chain: Chain, beams: int, limit: int) -> list[int]:
    live: list[list[int]] = [[]]
    ended: list[tuple[float, list[int]]] = []
    for _ in range(limit):
        grown = [[*ids, id] for ids in live for id in range(N_VOCAB)]
        grown = sorted(grown, key=chain.logprob, reverse=True)[: 2 * beams]
        ended += [(chain.logprob(ids) / len(ids), ids[:-1]) for ids in grown[:beams] if ids[-1] == END]
        ended = sorted(ended, reverse=True)[:beams]
        live = [ids for ids in grown if ids[-1] != END][:beams]
        best_live = max(chain.logprob(ids) / len(ids) for ids in live)
        if len(ended) == beams and best_live <= ended[-1][0]:
            return max(ended)[1]
    return max(ended + [(chain.logprob(ids) / len(ids), ids) for ids in live])[1]


@pytest.mark.parametrize("beams", [1, 2, 3])
@pytest.mark.parametrize("seed", range(10))
def test_few_beams_find_what_the_twin_finds(seed: int, beams: int) -> None:
    assert list(BeamSearch(Chain(seed).after, beams, [END], 8)) == twin(Chain(seed), beams, 8)


def test_neighbours_share_what_they_can() -> None:
    chain = Chain(3)
    list(BeamSearch(chain.after, 3, [END], 6))
    for n in range(1, 6):
        together = [ids for ids in chain.asked if len(ids) == n]
        assert together == sorted(together)


def test_impossible_tokens_are_no_hypotheses() -> None:
    only = np.full(N_VOCAB, -np.inf)
    only[2] = 0.0
    search = BeamSearch(lambda _: only, 3, [END], 5)
    assert list(search) == [2] * 5
    assert not search.best_has_ended


def test_the_agreement_of_texts() -> None:
    assert agreement([[1, 2, 3], [1, 2], [1, 2, 4]]) == [1, 2]
    assert agreement([[1], [2]]) == agreement([[], [2]]) == []
