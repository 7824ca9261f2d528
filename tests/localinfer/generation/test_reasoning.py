"""Detection of reasoning content."""

from typing import Any

import pytest

from localinfer.generation.pieces import Piece
from localinfer.generation.reasoning import ReasoningTracker, merge_reasoning

WORDS = {1: b"<think>", 2: b"</think>", 3: b"\n\n", 4: b"so", 5: b"answer"}


class Tokenizer:
    def split(self, text: str) -> list[str | int]:
        known = {word.decode(): id for id, word in WORDS.items()}
        return [known.get(text, text)]

    def token_bytes(self, id: int, *, special: bool = False) -> bytes:
        return WORDS[id]


@pytest.fixture
def tokenizer() -> Any:
    return Tokenizer()


@pytest.mark.parametrize(
    ("prompt", "ids", "kinds"),
    [
        ([5], [1, 3, 4, 2, 3, 5], "tag reasoning reasoning tag tag text"),
        ([5], [3, 1, 4, 2, 5], "text tag reasoning tag text"),
        ([5, 1, 3], [4, 2, 3, 5], "reasoning tag tag text"),  # the template opens the reasoning
        ([1, 3, 2, 3], [5, 4], "text text"),  # the template opens and closes the reasoning
        ([5], [5, 1, 4, 2], "text text text text"),  # tags within an answer
        ([1, -1, -2], [4, 5], "text text"),  # the prompt ends with an image
        ([5], [1, 4, 4, 4], "tag reasoning reasoning reasoning"),
    ],
)
def test_kinds_of_tokens(tokenizer: Any, prompt: list[int], ids: list[int], kinds: str) -> None:
    assert kinds_of(ReasoningTracker(tokenizer, prompt), ids) == kinds.split()


@pytest.mark.parametrize(
    ("budget", "expected"), [(0, [1, 2, 4, 4]), (1, [1, 4, 2, 4]), (2, [1, 4, 4, 2]), (-1, [1, 4, 4, 4])]
)
def test_reasoning_budget(tokenizer: Any, budget: int, expected: list[int]) -> None:
    tracker = ReasoningTracker(tokenizer, [5], budget)
    ids = []
    for desired in [1, 4, 4, 4]:
        ids.append(desired if tracker.forced is None else tracker.forced)
        tracker.accept(ids[-1])
    assert ids == expected


def test_vocabulary_without_tags(tokenizer: Any) -> None:
    tokenizer.split = lambda text: [text]
    assert kinds_of(ReasoningTracker(tokenizer, [1]), [1, 4]) == ["text", "text"]


def test_merge_reasoning_into_the_answer(tokenizer: Any) -> None:
    pieces = [Piece("", 1, "tag"), Piece("so", 4, "reasoning"), Piece("</think>", 2, "tag"), Piece("answer", 5)]
    merged = list(
        merge_reasoning((piece for piece in pieces), tokenizer)
    )  # a control token has no text
    assert [(piece.text, piece.kind) for piece in merged] == [
        ("<think>", "text"), ("so", "text"), ("</think>", "text"), ("answer", "text"),
    ]  # fmt: skip


def kinds_of(tracker: ReasoningTracker, ids: list[int]) -> list[str]:
    kinds = []
    for id in ids:
        tracker.accept(id)
        kinds.append(tracker.kind)
    return kinds
