"""Suggestions for misspelt names, and the edit distance that selects them."""

import pytest

from cli.arguments.suggestions import closest_names, did_you_mean, edit_distance


@pytest.mark.parametrize(
    ("a", "b", "mistakes"),
    [
        ("", "", 0), ("abc", "abc", 0), ("abc", "", 3), ("", "abc", 3), ("abc", "abd", 1), ("abc", "acb", 1),
        ("kitten", "sitting", 3), ("ab", "ba", 1), ("abcd", "badc", 2), ("ca", "abc", 3),
    ],
)  # fmt: skip
def test_distance(a: str, b: str, mistakes: int) -> None:
    """The last case has a larger distance by optimal string alignment than by Damerau-Levenshtein."""
    assert edit_distance(a, b) == edit_distance(b, a) == mistakes


def test_distance_equals_naive_implementation() -> None:
    """The naive implementation recurses over all last edits."""

    def naive(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        candidates = [naive(a[:-1], b) + 1, naive(a, b[:-1]) + 1, naive(a[:-1], b[:-1]) + (a[-1] != b[-1])]
        if a[-2:] == b[-2:][::-1] and len(a) > 1:
            candidates.append(naive(a[:-2], b[:-2]) + 1)
        return min(candidates)

    words = ["", "a", "ab", "ba", "abc", "cba", "bac", "abab", "babc", "tmep", "temp"]
    assert all(edit_distance(a, b) == naive(a, b) for a in words for b in words)


@pytest.mark.parametrize(
    ("word", "names", "actual"),
    [
        ("--tmp", ["--temp", "--top-k"], ["--temp"]),
        ("--ctxsize", ["--ctx-size"], ["--ctx-size"]),
        ("--chat-templ", ["--chat-template-file", "--chat-template"], ["--chat-template"]),
        ("-x", ["-xy"], []),
        ("--Temp", ["--temp"], ["--temp"]),
        ("--typical", ["--special", "--top-k"], []),
        ("Q4_KM", ["Q4_K_M", "Q4_K_S", "Q4_0"], ["Q4_K_M"]),
        ("genrate", ["chat", "generate"], ["generate"]),
        ("--thraed", ["--threads"], []),
        ("--thread", ["--threads", "--thrust"], ["--threads"]),
        ("tak", ["tab", "tag"], ["tab", "tag"]),
        ("-x", ["-c", "-t"], []),
        ("x", [], []),
    ],
)
def test_nearest(word: str, names: list[str], actual: list[str]) -> None:
    assert closest_names(word, names) == actual


def test_suggestion_text() -> None:
    assert did_you_mean("tak", ["tab", "tag"]) == "; did you mean tab or tag?"
    assert did_you_mean("else", ["tab", "tag"]) == ""
