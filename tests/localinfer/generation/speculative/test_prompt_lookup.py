"""Prompt lookup finds the longest match, like a reference that compares all positions."""

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from localinfer.generation.speculative.draft_length import DraftLengthModel
from localinfer.generation.speculative.prompt_lookup import MAX_CANDIDATES, MAX_MATCH, NGRAM_SIZE, PromptLookup


class AlwaysDraft(DraftLengthModel):
    """A length model that always drafts the maximum number of tokens."""

    def best_length(
        self, rates: Iterable[float], min_tokens: int, max_tokens: int, draft_cost: float = 0.0
    ) -> tuple[int, float]:
        return (max_tokens, 2.0) if next(iter(rates), 0) else (0, 1.0)


def lookup(ids: Sequence[int]) -> PromptLookup:
    """Return a lookup with the first half of the text as the prompt and the second half as the answer."""
    created = PromptLookup(AlwaysDraft())
    created.accept_prompt(ids[: len(ids) // 2])
    for id in ids[len(ids) // 2 :]:
        created.accept(id)
    return created


def draft_tokens(created: PromptLookup, max_draft: int) -> list[int]:
    created.choose_length(0, max_draft)
    return created.draft()


def longest_match(ids: Sequence[int]) -> int:
    """Return the length of the longest match of the last tokens."""
    positions = range(NGRAM_SIZE, len(ids))
    return max((match_length_of(ids[:position], ids) for position in positions), default=0)


def match_length_of(a: Sequence[int], b: Sequence[int]) -> int:
    n = next((n for n, (x, y) in enumerate(zip(reversed(a), reversed(b), strict=False)) if x != y), min(len(a), len(b)))
    return n if n >= NGRAM_SIZE else 0


@pytest.mark.parametrize("seed", range(20))
def test_longest_match_is_found(seed: int) -> None:
    """The texts are so short that all positions are compared."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 3 + seed % 4, MAX_CANDIDATES).tolist()
    for end in range(1, len(ids) + 1):
        assert min(lookup(ids[:end]).match_length, MAX_MATCH) == min(longest_match(ids[:end]), MAX_MATCH)


@pytest.mark.parametrize("seed", range(5))
def test_draft_follows_an_earlier_match(seed: int) -> None:
    ids = np.random.default_rng(seed).integers(0, 6, 400).tolist()
    for end in range(10, len(ids)):
        actual = lookup(ids[:end])
        if drafted := draft_tokens(actual, 3):
            text, first = [*ids[:end], *drafted], end - actual.match_length
            assert any(text[at : at + len(text) - first] == text[first:] for at in range(first))


def test_no_draft_without_repetition() -> None:
    assert draft_tokens(lookup(range(100)), 8) == []
    assert draft_tokens(lookup([]), 8) == draft_tokens(lookup([1]), 8) == []


def test_periodic_text_is_continued() -> None:
    assert draft_tokens(lookup([9, 1, 2, 3, 1, 2, 3]), 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_drafting_resumes_after_a_changed_token() -> None:
    original = list(range(100))
    created = PromptLookup(AlwaysDraft())
    created.accept_prompt(original)
    for id in [*original[10:20], 777, *original[21:23]]:
        created.accept(id)
    assert draft_tokens(created, 4) == original[23:27]


def test_search_takes_linear_time() -> None:
    """A text of one repeated token is the worst case; comparisons are counted."""
    compared = 0

    class Counted(list[int]):
        def __getitem__(self, index: object) -> object:  # type: ignore[override]
            nonlocal compared
            compared += 1
            return super().__getitem__(index)  # type: ignore[index]

    created = PromptLookup(DraftLengthModel())
    created._ids = Counted()
    for id in [7, 8] * 2000 + [7, 7, 8] * 500:
        created.accept(id)
    assert compared < 5500 * 20


def test_acceptance_rate_is_measured_without_drafts() -> None:
    length_model = DraftLengthModel()
    created = PromptLookup(length_model)
    initial_rate = length_model.match_acceptance.rate(40)
    created.accept_prompt(range(200))
    for id in range(200):
        created.accept(id)
    assert length_model.match_acceptance.rate(40) > initial_rate


def test_rows_of_images_are_matched_but_not_drafted() -> None:
    created = PromptLookup(AlwaysDraft())
    created.accept_prompt([5, 6, -1, -2, 7, 8, 5, 6, 9, -1, -2])
    assert draft_tokens(created, 4) == [7, 8, 5, 6]
    created.accept_prompt([5, 6])
    assert draft_tokens(created, 4) == [9]  # the rows follow
