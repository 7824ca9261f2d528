"""Truncation of conversations: which turns are dropped."""

from collections.abc import Sequence

import pytest

from localinfer.chat_template.conversation import Message
from localinfer.chat_template.truncation import drop_oldest_turns

ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


def conversation(roles: str) -> list[Message]:
    return [{"role": ROLES[role], "content": f"{number}"} for number, role in enumerate(roles)]


def numbers(messages: Sequence[Message]) -> str:
    return "".join(str(each["content"]) for each in messages)


@pytest.mark.parametrize(
    ("roles", "maximum", "remaining"),
    [
        ("suauau", 6, "012345"),
        ("suauau", 5, "0345"),
        ("suauau", 4, "0345"),
        ("suauau", 3, "05"),
        ("suauau", 0, "05"),
        ("uauau", 3, "234"),
        ("uatatauau", 5, "678"),
        ("auau", 2, "03"),
        ("u", 0, "0"),
        ("s", 0, "0"),
        ("", 0, ""),
    ],
)
def test_whole_turns_are_dropped(roles: str, maximum: int, remaining: str) -> None:
    assert numbers(drop_oldest_turns(conversation(roles), len, maximum)) == remaining


def test_number_of_token_counts_is_logarithmic() -> None:
    counted_lengths = []

    def tokens_of(messages: Sequence[Message]) -> int:
        counted_lengths.append(len(messages))
        return len(messages)

    assert len(drop_oldest_turns(conversation("s" + "ua" * 1000 + "u"), tokens_of, 500)) == 500
    assert len(counted_lengths) <= 11
