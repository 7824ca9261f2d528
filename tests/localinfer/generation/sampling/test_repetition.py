"""Penalties and DRY: llama.cpp's own test values (tests/test-sampling.cpp), and a naive twin of the search."""

from collections.abc import Sequence

import numpy as np
import pytest

from localinfer.generation.sampling import Breakers, Candidates
from localinfer.generation.sampling.candidates import find, probabilities
from localinfer.generation.sampling.repetition import NO_BREAKERS, continuations, dry, penalized

WORDS = dict(enumerate([b"one", b" two", b" three", b":", b"end:", b".\n", b"\n\n", b"half", b"A##", b"#"]))


def even(n: int) -> Candidates:
    return Candidates(np.arange(n), np.log(np.full(n, 1 / n, np.float32)))


def breakers(*texts: str) -> Breakers:
    """Of a vocabulary in which each character that has no token of its own is a 7."""
    ids = {word.decode(): id for id, word in WORDS.items()}
    return Breakers(texts, lambda id: WORDS[id], lambda text: [ids.get(char, 7) for char in text])


# --- penalties ---


@pytest.mark.parametrize(("recent", "repeat", "flat", "expected"), [
    ([0], 50, 0, [0, 0.25, 0.25, 0.25, 0.25]),
    ([0, 1, 2], 50, 0, [0, 0, 0, 0.5, 0.5]),
    ([0, 1, 2, 0, 0], 50, 0, [0, 0, 0, 0.5, 0.5]),
    ([0], 1, 5, [0.000011, 0.249997, 0.249997, 0.249997, 0.249997]),
    ([0, 1, 2], 1, 5, [0.000023, 0.000023, 0.000023, 0.499966, 0.499966]),
    ([0, 1, 2, 0, 0], 1, 5, [0, 0.000023, 0.000023, 0.499977, 0.499977]),
])  # fmt: skip
def test_penalties_of_llama_cpp(recent: list[int], repeat: float, flat: float, expected: list[float]) -> None:
    left = penalized(even(5), recent, repeat, frequency=flat, presence=flat)
    assert probabilities(left.logits).tolist() == pytest.approx(expected, abs=1e-5)


def test_penalties_find_tokens_wherever_they_are() -> None:
    shuffled = Candidates(np.array([4, 1, 3]), np.array([1.0, 1.0, 1.0], np.float32))
    assert penalized(shuffled, [3, 4, 4, 0], 1.0, frequency=1.0).logits.tolist() == [-1.0, 1.0, 0.0]


def test_tokens_are_found_among_candidates() -> None:
    ids = np.random.default_rng(0).permutation(1000)[:300]
    wanted = np.unique(np.random.default_rng(1).integers(0, 1000, 200))
    places, which = find(Candidates(ids, np.zeros(300)), wanted)
    assert ids[places].tolist() == wanted[which].tolist()
    assert len(places) == np.isin(ids, wanted).sum()


# --- DRY ---


@pytest.mark.parametrize(("n", "recent", "expected", "multiplier", "allowed", "texts"), [
    (4, [0, 1], [0.25] * 4, 1.0, 2, []),
    (4, [0, 1, 2, 0, 1], [0.296923, 0.296923, 0.109232, 0.296923], 1.0, 2, []),
    (5, [0, 1, 3, 4, 0, 1], [0.2] * 5, 1.0, 2, [":"]),
    (5, [0, 1, 2, 0, 1], [0.241818, 0.241818, 0.032727, 0.241818, 0.241818], 2.0, 2, []),
    (5, [0, 1, 2, 3, 4, 0, 1], [0.2] * 5, 1.0, 4, []),
])  # fmt: skip
def test_dry_of_llama_cpp(
    n: int, recent: list[int], expected: list[float], multiplier: float, allowed: int, texts: list[str]
) -> None:
    left = dry(even(n), recent, breakers(*texts), multiplier, 1.1, allowed)
    assert probabilities(left.logits).tolist() == pytest.approx(expected, abs=1e-5)


def test_a_long_repetition_costs_much_but_not_infinitely_much() -> None:
    left = dry(even(3), [0, 1] * 500, NO_BREAKERS, 0.8, 1.75, 2)
    assert np.isfinite(left.logits).all()
    assert left.logits[0] < -1e30


def naive_continuations(window: Sequence[int], longest: int) -> dict[int, int]:
    alike: dict[int, int] = {}
    for end in range(len(window) - 1):
        n = 0
        while n <= end and n < longest and window[end - n] == window[-1 - n]:
            n += 1
        alike[window[end + 1]] = max(n, alike.get(window[end + 1], 0))
    return alike


@pytest.mark.parametrize("seed", range(30))
def test_continuations_are_those_of_the_naive_twin(seed: int) -> None:
    random = np.random.default_rng(seed)
    window = random.integers(0, random.integers(1, 5), random.integers(2, 200))
    for longest in (0, 1, 5, 1000):
        ids, alike = continuations(window, longest)
        assert dict(zip(ids.tolist(), alike.tolist(), strict=True)) == naive_continuations(window.tolist(), longest)


@pytest.mark.parametrize(("text", "id", "tails"), [
    (":", 3, [[]]), (":", 4, [[]]), ("\n", 5, [[]]), ("\n", 6, [[]]), (":", 0, []),
    ("##", 8, [[]]), ("##", 9, [[9]]), ("###", 8, [[9], [9, 9]]), ("\n\n\n", 6, [[7], [7, 7]]),
])  # fmt: skip
def test_which_tokens_begin_a_breaker(text: str, id: int, tails: list[list[int]]) -> None:
    assert sorted(breakers(text).tails(id)) == sorted(tails)


@pytest.mark.parametrize(("text", "window", "since"), [
    (":", [3, 0, 1], 2), (":", [0, 1, 3], 0), (":", [0, 1, 2], 3), ("##", [0, 9, 9, 1], 1), ("##", [0, 9, 1, 9], 4),
])  # fmt: skip
def test_how_many_tokens_come_after_the_last_breaker(text: str, window: list[int], since: int) -> None:
    assert breakers(text).tokens_since(window) == since
