"""Categories are those of Unicode 15.1, independent of Oniguruma's version."""

from localinfer.tokenizer.unicode import WHITE_SPACE, characters_in, simple_lower


def test_categories() -> None:
    assert characters_in("a1 ß字٣\u0301!", r"\p{L}") == {"a", "ß", "字"}
    assert characters_in("a1 ß字٣\u0301!", r"[\p{N}\p{M}]") == {"1", "٣", "\u0301"}
    assert characters_in("", r"\p{L}") == set()


def test_characters_of_unicode_16_are_unassigned() -> None:
    todhri, garay_digit, kirat_rai_sign = "\U000105c0", "\U00010d41", "\U00016d6d"
    for category in ("L", "N", "P", "S", "M"):
        assert characters_in(todhri + garay_digit + kirat_rai_sign, rf"\p{{{category}}}") == set()
    assert characters_in("\U0001e4d0", r"\p{L}")  # assigned in Unicode 15


def test_white_space() -> None:
    assert set(WHITE_SPACE) == {char for char in map(chr, range(0x3001)) if char.isspace()} - set("\x1c\x1d\x1e\x1f")


def test_lower() -> None:
    assert [simple_lower(char) for char in "AİΣßǅ"] == ["a", "i", "σ", "ß", "ǆ"]
