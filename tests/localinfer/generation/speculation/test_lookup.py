"""Guesses from the text itself: the longest repetition, found as a twin finds it that compares everything."""

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from localinfer.generation.speculation.lookup import CANDIDATES, LONG_ENOUGH, SHORTEST, Lookup
from localinfer.generation.speculation.pace import Pace


class Eager(Pace):
    """Every guess pays."""

    def best(self, chances: Iterable[float], fewest: int, most: int, each: float = 0.0) -> tuple[int, float]:
        return (most, 2.0) if next(iter(chances), 0) else (0, 1.0)


def lookup(ids: Sequence[int]) -> Lookup:
    """What has read the first half, and followed the second one."""
    made = Lookup(Eager())
    made.read(ids[: len(ids) // 2])
    for id in ids[len(ids) // 2 :]:
        made.follow(id)
    return made


def guesses(made: Lookup, most: int) -> list[int]:
    made.promise(0, most)
    return made.guesses()


def longest(ids: Sequence[int]) -> int:
    """How many last tokens stood in the text before."""
    places = range(SHORTEST, len(ids))
    return max((common(ids[:place], ids) for place in places), default=0)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    n = next((n for n, (x, y) in enumerate(zip(reversed(a), reversed(b), strict=False)) if x != y), min(len(a), len(b)))
    return n if n >= SHORTEST else 0


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_the_longest_repetition(seed: int) -> None:
    """In texts so short that all places are looked at."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 3 + seed % 4, CANDIDATES).tolist()
    for end in range(1, len(ids) + 1):
        assert min(lookup(ids[:end]).length, LONG_ENOUGH) == min(longest(ids[:end]), LONG_ENOUGH)


@pytest.mark.parametrize("seed", range(5))
def test_what_it_guesses_followed_the_same_tokens(seed: int) -> None:
    ids = np.random.default_rng(seed).integers(0, 6, 400).tolist()
    for end in range(10, len(ids)):
        found = lookup(ids[:end])
        if guessed := guesses(found, 3):
            text, first = [*ids[:end], *guessed], end - found.length
            assert any(text[at : at + len(text) - first] == text[first:] for at in range(first))


def test_nothing_is_guessed_where_nothing_repeats() -> None:
    assert guesses(lookup(range(100)), 8) == []
    assert guesses(lookup([]), 8) == guesses(lookup([1]), 8) == []


def test_a_circle_goes_on() -> None:
    assert guesses(lookup([9, 1, 2, 3, 1, 2, 3]), 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_after_a_change_it_goes_on_where_the_original_does() -> None:
    original = list(range(100))
    made = Lookup(Eager())
    made.read(original)
    for id in [*original[10:20], 777, *original[21:23]]:
        made.follow(id)
    assert guesses(made, 4) == original[23:27]


def test_following_takes_linear_time() -> None:
    """A text of one word, whose places are all alike, is the worst one: places that were looked at are counted."""
    compared = 0

    class Counted(list[int]):
        def __getitem__(self, index: object) -> object:  # type: ignore[override]
            nonlocal compared
            compared += 1
            return super().__getitem__(index)  # type: ignore[index]

    made = Lookup(Pace())
    made._ids = Counted()
    for id in [7, 8] * 2000 + [7, 7, 8] * 500:
        made.follow(id)
    assert compared < 5500 * 20


def test_what_would_have_come_true_is_known_before_anything_is_guessed() -> None:
    pace = Pace()
    made = Lookup(pace)
    usual = pace.record.chance(40)
    made.read(range(200))
    for id in range(200):
        made.follow(id)
    assert pace.record.chance(40) > usual
