"""Escaping of text for the terminal."""

import shlex

import pytest

from localinfer.escaping import printable, shell_word, terminal_text


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


BIDIRECTIONAL = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # the property Bidi_Control


def test_terminals_interpret_nothing_of_a_text() -> None:
    kept = "plain\ttab\nüñï 日本 \N{FAMILY}\N{ZERO WIDTH JOINER}\N{GIRL} \u200c \N{HEAVY BLACK HEART}\ufe0f"
    assert terminal_text(kept) == kept
    for character in [*map(chr, range(9)), *map(chr, range(11, 32)), *map(chr, range(127, 160)), *BIDIRECTIONAL]:
        assert terminal_text(f"a{character}b").isprintable()
    assert terminal_text("\x1b]52;c;eA==\x07\x9b2J") == r"\x1b]52;c;eA==\x07\x9b2J"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("smollm2", "smollm2"),
        ("hf:owner/repo:Q4_K_M", "hf:owner/repo:Q4_K_M"),
        ("https://host/m.gguf#sha256=00", "https://host/m.gguf#sha256=00"),
        ("my model.gguf", '"my model.gguf"'),
        ("it's mine", '"it\'s mine"'),
        ("$HOME it's", "'$HOME it'\\''s'"),
        ("a\x1b;b", "'a\\x1b;b'"),
        ("#comment", '"#comment"'),
        ("", '""'),
    ],
)
def test_words_of_command_lines(text: str, word: str) -> None:
    """A shell reads the shown word as the text, apart from characters that were escaped."""
    assert shell_word(text) == word
    assert shlex.split(word) == [printable(text)]
