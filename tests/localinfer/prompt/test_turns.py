"""Which turns go when a conversation is too long."""

from collections.abc import Sequence

import pytest

from localinfer.prompt.conversation import Message
from localinfer.prompt.turns import without_oldest

ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


def talk(roles: str) -> list[Message]:
    return [{"role": ROLES[role], "content": f"{number}"} for number, role in enumerate(roles)]


def numbers(messages: Sequence[Message]) -> str:
    return "".join(str(each["content"]) for each in messages)


@pytest.mark.parametrize(
    ("roles", "most", "left"),
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
def test_whole_turns_go(roles: str, most: int, left: str) -> None:
    assert numbers(without_oldest(talk(roles), len, most)) == left


def test_few_questions_are_asked() -> None:
    asked = []

    def tokens_of(messages: Sequence[Message]) -> int:
        asked.append(len(messages))
        return len(messages)

    assert len(without_oldest(talk("s" + "ua" * 1000 + "u"), tokens_of, 500)) == 500
    assert len(asked) <= 11
