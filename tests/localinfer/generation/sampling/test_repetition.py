"""Penalties and DRY: llama.cpp's own test values (tests/test-sampling.cpp), and a naive reference of the search."""

from collections.abc import Sequence

import numpy as np
import pytest

from localinfer.generation.sampling import Candidates, SequenceBreakers
from localinfer.generation.sampling.candidates import find, softmax
from localinfer.generation.sampling.repetition import (
    NO_SEQUENCE_BREAKERS,
    apply_penalties,
    dry,
    last_tokens,
    repeated_continuations,
)

WORDS = dict(enumerate([b"one", b" two", b" three", b":", b"end:", b".\n", b"\n\n", b"half", b"A##", b"#"]))


def uniform(n: int) -> Candidates:
    return Candidates(np.arange(n), np.log(np.full(n, 1 / n, np.float32)))


def breakers(*texts: str) -> SequenceBreakers:
    """Return breakers for a vocabulary in which characters without a token are token 7."""
    ids = {word.decode(): id for id, word in WORDS.items()}
    return SequenceBreakers(texts, lambda id: WORDS[id], lambda text: [ids.get(char, 7) for char in text])


# --- penalties ---


@pytest.mark.parametrize(("n", "expected"), [(-1, [1, 2, 3, 4]), (3, [2, 3, 4]), (2, [3, 4]), (1, [4]), (0, [])])
def test_rows_of_images_are_no_recent_tokens(n: int, expected: list[int]) -> None:
    assert list(last_tokens([1, 2, -1, -2, -3, 3, 4], n)) == expected


@pytest.mark.parametrize(("recent", "repeat", "flat", "expected"), [
    ([0], 50, 0, [0, 0.25, 0.25, 0.25, 0.25]),
    ([0, 1, 2], 50, 0, [0, 0, 0, 0.5, 0.5]),
    ([0, 1, 2, 0, 0], 50, 0, [0, 0, 0, 0.5, 0.5]),
    ([0], 1, 5, [0.000011, 0.249997, 0.249997, 0.249997, 0.249997]),
    ([0, 1, 2], 1, 5, [0.000023, 0.000023, 0.000023, 0.499966, 0.499966]),
    ([0, 1, 2, 0, 0], 1, 5, [0, 0.000023, 0.000023, 0.499977, 0.499977]),
])  # fmt: skip
def test_penalties_match_llama_cpp(recent: list[int], repeat: float, flat: float, expected: list[float]) -> None:
    remaining = apply_penalties(uniform(5), recent, repeat, frequency=flat, presence=flat)
    assert softmax(remaining.logits).tolist() == pytest.approx(expected, abs=1e-5)


def test_penalties_do_not_depend_on_candidate_order() -> None:
    shuffled = Candidates(np.array([4, 1, 3]), np.array([1.0, 1.0, 1.0], np.float32))
    assert apply_penalties(shuffled, [3, 4, 4, 0], 1.0, frequency=1.0).logits.tolist() == [-1.0, 1.0, 0.0]


def test_find_returns_candidate_positions() -> None:
    ids = np.random.default_rng(0).permutation(1000)[:300]
    expected = np.unique(np.random.default_rng(1).integers(0, 1000, 200))
    positions, which = find(Candidates(ids, np.zeros(300)), expected)
    assert ids[positions].tolist() == expected[which].tolist()
    assert len(positions) == np.isin(ids, expected).sum()


# --- DRY ---


@pytest.mark.parametrize(("n", "recent", "expected", "multiplier", "allowed", "texts"), [
    (4, [0, 1], [0.25] * 4, 1.0, 2, []),
    (4, [0, 1, 2, 0, 1], [0.296923, 0.296923, 0.109232, 0.296923], 1.0, 2, []),
    (5, [0, 1, 3, 4, 0, 1], [0.2] * 5, 1.0, 2, [":"]),
    (5, [0, 1, 2, 0, 1], [0.241818, 0.241818, 0.032727, 0.241818, 0.241818], 2.0, 2, []),
    (5, [0, 1, 2, 3, 4, 0, 1], [0.2] * 5, 1.0, 4, []),
])  # fmt: skip
def test_dry_matches_llama_cpp(
    n: int, recent: list[int], expected: list[float], multiplier: float, allowed: int, texts: list[str]
) -> None:
    remaining = dry(uniform(n), recent, breakers(*texts), multiplier, 1.1, allowed)
    assert softmax(remaining.logits).tolist() == pytest.approx(expected, abs=1e-5)


def test_dry_penalty_of_a_long_repetition_is_finite() -> None:
    remaining = dry(uniform(3), [0, 1] * 500, NO_SEQUENCE_BREAKERS, 0.8, 1.75, 2)
    assert np.isfinite(remaining.logits).all()
    assert remaining.logits[0] < -1e30


def naive_search(window: Sequence[int], longest: int) -> dict[int, int]:
    match_lengths: dict[int, int] = {}
    for end in range(len(window) - 1):
        n = 0
        while n <= end and n < longest and window[end - n] == window[-1 - n]:
            n += 1
        match_lengths[window[end + 1]] = max(n, match_lengths.get(window[end + 1], 0))
    return match_lengths


@pytest.mark.parametrize("seed", range(30))
def test_repeated_continuations_match_naive_search(seed: int) -> None:
    random = np.random.default_rng(seed)
    window = random.integers(0, random.integers(1, 5), random.integers(2, 200))
    for longest in (0, 1, 5, 1000):
        ids, match_lengths = repeated_continuations(window, longest)
        assert dict(zip(ids.tolist(), match_lengths.tolist(), strict=True)) == naive_search(window.tolist(), longest)


@pytest.mark.parametrize(("text", "id", "tails"), [
    (":", 3, [[]]), (":", 4, [[]]), ("\n", 5, [[]]), ("\n", 6, [[]]), (":", 0, []),
    ("##", 8, [[]]), ("##", 9, [[9]]), ("###", 8, [[9], [9, 9]]), ("\n\n\n", 6, [[7], [7, 7]]),
])  # fmt: skip
def test_tails_of_sequence_breakers(text: str, id: int, tails: list[list[int]]) -> None:
    assert sorted(breakers(text).tails(id)) == sorted(tails)


@pytest.mark.parametrize(("text", "window", "since"), [
    (":", [3, 0, 1], 2), (":", [0, 1, 3], 0), (":", [0, 1, 2], 3), ("##", [0, 9, 9, 1], 1), ("##", [0, 9, 1, 9], 4),
])  # fmt: skip
def test_tokens_since_the_last_sequence_breaker(text: str, window: list[int], since: int) -> None:
    assert breakers(text).tokens_since(window) == since
