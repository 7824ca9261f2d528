"""What of an answer is thought."""

from typing import Any

import pytest

from localinfer.generation.pieces import Piece
from localinfer.generation.thoughts import Thoughts, as_text

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
        ([5], [1, 3, 4, 2, 3, 5], "tag thought thought tag tag text"),
        ([5], [3, 1, 4, 2, 5], "text tag thought tag text"),
        ([5, 1, 3], [4, 2, 3, 5], "thought tag tag text"),  # the template has opened them
        ([1, 3, 2, 3], [5, 4], "text text"),  # ... and closed them
        ([5], [5, 1, 4, 2], "text text text text"),  # an answer that talks of tags
        ([5], [1, 4, 4, 4], "tag thought thought thought"),
    ],
)
def test_kinds(tokenizer: Any, prompt: list[int], ids: list[int], kinds: str) -> None:
    assert kinds_of(Thoughts(tokenizer, prompt), ids) == kinds.split()


@pytest.mark.parametrize(
    ("budget", "expected"), [(0, [1, 2, 4, 4]), (1, [1, 4, 2, 4]), (2, [1, 4, 4, 2]), (-1, [1, 4, 4, 4])]
)
def test_budget(tokenizer: Any, budget: int, expected: list[int]) -> None:
    thoughts = Thoughts(tokenizer, [5], budget)
    ids = []
    for wanted in [1, 4, 4, 4]:
        ids.append(wanted if thoughts.forced is None else thoughts.forced)
        thoughts.follow(ids[-1])
    assert ids == expected


def test_vocabulary_without_tags(tokenizer: Any) -> None:
    tokenizer.split = lambda text: [text]
    assert kinds_of(Thoughts(tokenizer, [1]), [1, 4]) == ["text", "text"]


def test_thoughts_as_a_part_of_the_answer(tokenizer: Any) -> None:
    pieces = [Piece("", 1, "tag"), Piece("so", 4, "thought"), Piece("</think>", 2, "tag"), Piece("answer", 5)]
    told = list(as_text((piece for piece in pieces), tokenizer))  # a tag may be a control token, which has no text
    assert [(piece.text, piece.kind) for piece in told] == [
        ("<think>", "text"), ("so", "text"), ("</think>", "text"), ("answer", "text"),
    ]  # fmt: skip


def kinds_of(thoughts: Thoughts, ids: list[int]) -> list[str]:
    kinds = []
    for id in ids:
        thoughts.follow(id)
        kinds.append(thoughts.kind)
    return kinds
