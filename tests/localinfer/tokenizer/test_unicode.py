"""Categories are those of Unicode 15.1, whatever Oniguruma knows."""

from localinfer.tokenizer.unicode import WHITE_SPACE, members, simple_lower


def test_members() -> None:
    assert members("a1 ß字٣\u0301!", r"\p{L}") == {"a", "ß", "字"}
    assert members("a1 ß字٣\u0301!", r"[\p{N}\p{M}]") == {"1", "٣", "\u0301"}
    assert members("", r"\p{L}") == set()


def test_what_is_new_in_unicode_16_is_nothing_yet() -> None:
    todhri, garay_digit, kirat_rai_sign = "\U000105c0", "\U00010d41", "\U00016d6d"
    for category in ("L", "N", "P", "S", "M"):
        assert members(todhri + garay_digit + kirat_rai_sign, rf"\p{{{category}}}") == set()
    assert members("\U0001e4d0", r"\p{L}")  # of Unicode 15


def test_white_space() -> None:
    assert set(WHITE_SPACE) == {char for char in map(chr, range(0x3001)) if char.isspace()} - set("\x1c\x1d\x1e\x1f")


def test_lower() -> None:
    assert [simple_lower(char) for char in "AİΣßǅ"] == ["a", "i", "σ", "ß", "ǆ"]
