"""Plain-text tables."""

from cli.terminal.tables import table

ROWS = [("a", "1.0", "short"), ("longer", "12.0", "a text of several words that is longer than the others")]


def test_columns_are_aligned() -> None:
    assert list(table("title", "<><", ROWS)) == [
        "", "title", "  a        1.0  short",
        "  longer  12.0  a text of several words that is longer than the others",
    ]  # fmt: skip
    assert list(table("title", "<><", [])) == []


def test_last_column_is_wrapped_at_words_if_a_row_is_too_long() -> None:
    assert list(table("title", "<><", ROWS, width=72)) == list(table("title", "<><", ROWS))
    lines = list(table("title", "<><", ROWS, width=40))
    assert lines == [
        "", "title", "  a        1.0", "      short",
        "  longer  12.0", "      a text of several words that is", "      longer than the others",
    ]  # fmt: skip
    assert max(map(len, lines)) <= 40


def test_long_name_has_a_line_of_its_own() -> None:
    rows = [("hf:owner/a-repository-with-a-long-name:Q4_K_M", "1.0", "here", "")]
    assert list(table("t", "<><<", rows, width=50)) == [
        "", "t", "  hf:owner/a-repository-with-a-long-name:Q4_K_M", "      1.0 here"
    ]  # fmt: skip
