"""Escaping of text for the terminal."""

import pytest

from localinfer.escaping import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünïcode, 日本, [red]", "plain, ünïcode, 日本, [red]"),
        ("\x1b[31m\a\r\n\t\x7f\x9b", r"\x1b[31m\x07\r\n\t\x7f\x9b"),
        ("right\u202eleft\u2028line", r"right\u202eleft\u2028line"),
        (b"\xff\xc3\xa9", r"\xffé"),
        ("\udcff", r"\xff"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
        ("", ""),
    ],
)
def test_invisible_characters_are_escaped(text: str | bytes, shown: str) -> None:
    assert printable(text) == shown
    assert shown.isprintable()


def test_long_text_is_cut() -> None:
    assert printable("x" * 10, limit=10) == "x" * 10
    assert printable("x" * 11, limit=10) == "x" * 10 + "..."
