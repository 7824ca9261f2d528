"""Beam search over Markov chains: many beams find the best text, and few beams match a naive reference."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from localinfer.generation.beam_search import BeamSearch, common_prefix

END = 0
N_VOCAB = 4


class Chain:
    """A Markov chain: the next token depends on the last two."""

    def __init__(self, seed: int) -> None:
        logits = np.random.default_rng(seed).standard_normal((N_VOCAB + 1, N_VOCAB + 1, N_VOCAB)) * 1.5
        self.logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        self.evaluated: list[list[int]] = []

    def next_logprobs(self, ids: Sequence[int]) -> np.ndarray:
        self.evaluated.append(list(ids))
        before, last = [N_VOCAB, N_VOCAB, *ids][-2:]
        return self.logprobs[before, last]

    def logprob(self, ids: Sequence[int]) -> float:
        return sum(self.next_logprobs(ids[:n])[id] for n, id in enumerate(ids))


def texts(limit: int) -> list[tuple[int, ...]]:
    """Return all texts that end, or have `limit` tokens."""
    words = [id for id in range(N_VOCAB) if id != END]
    finished = [(*each, END) for n in range(limit) for each in itertools.product(words, repeat=n)]
    return finished + list(itertools.product(words, repeat=limit))


@pytest.mark.parametrize("seed", range(10))
def test_many_beams_find_the_best_text(seed: int) -> None:
    chain = Chain(seed)
    best = max(texts(4), key=lambda ids: chain.logprob(ids) / len(ids))
    search = BeamSearch(chain.next_logprobs, 200, [END], 4)
    assert tuple(search) == tuple(id for id in best if id != END)
    assert search.is_best_finished == (best[-1] == END)


def naive_beam_search(chain: Chain, beams: int, limit: int) -> list[int]:
    live: list[list[int]] = [[]]
    finished: list[tuple[float, list[int]]] = []
    for _ in range(limit):
        extended = [[*ids, id] for ids in live for id in range(N_VOCAB)]
        extended = sorted(extended, key=chain.logprob, reverse=True)[: 2 * beams]
        finished += [(chain.logprob(ids) / len(ids), ids[:-1]) for ids in extended[:beams] if ids[-1] == END]
        finished = sorted(finished, reverse=True)[:beams]
        live = [ids for ids in extended if ids[-1] != END][:beams]
        best_live = max(chain.logprob(ids) / len(ids) for ids in live)
        if len(finished) == beams and best_live <= finished[-1][0]:
            return max(finished)[1]
    return max(finished + [(chain.logprob(ids) / len(ids), ids) for ids in live])[1]


@pytest.mark.parametrize("beams", [1, 2, 3])
@pytest.mark.parametrize("seed", range(10))
def test_few_beams_match_the_reference(seed: int, beams: int) -> None:
    assert list(BeamSearch(Chain(seed).next_logprobs, beams, [END], 8)) == naive_beam_search(Chain(seed), beams, 8)


def test_hypotheses_are_evaluated_in_sorted_order() -> None:
    chain = Chain(3)
    list(BeamSearch(chain.next_logprobs, 3, [END], 6))
    for n in range(1, 6):
        of_length = [ids for ids in chain.evaluated if len(ids) == n]
        assert of_length == sorted(of_length)


def test_impossible_tokens_are_never_selected() -> None:
    logprobs_of_2 = np.full(N_VOCAB, -np.inf)
    logprobs_of_2[2] = 0.0
    search = BeamSearch(lambda _: logprobs_of_2, 3, [END], 5)
    assert list(search) == [2] * 5
    assert not search.is_best_finished


def test_common_prefix() -> None:
    assert common_prefix([[1, 2, 3], [1, 2], [1, 2, 4]]) == [1, 2]
    assert common_prefix([[1], [2]]) == common_prefix([[], [2]]) == []
