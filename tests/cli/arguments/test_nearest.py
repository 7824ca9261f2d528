"""What a misspelt name may have been meant to be."""

import pytest

from cli.arguments.nearest import did_you_mean, distance, nearest


@pytest.mark.parametrize(
    ("a", "b", "mistakes"),
    [
        ("", "", 0), ("abc", "abc", 0), ("abc", "", 3), ("", "abc", 3), ("abc", "abd", 1), ("abc", "acb", 1),
        ("kitten", "sitting", 3), ("ab", "ba", 1), ("abcd", "badc", 2), ("ca", "abc", 3),
    ],
)  # fmt: skip
def test_distance(a: str, b: str, mistakes: int) -> None:
    """The last one is where optimal string alignment counts more than Damerau and Levenshtein do."""
    assert distance(a, b) == distance(b, a) == mistakes


def test_distance_is_that_of_the_definition() -> None:
    """All ways to undo the last mistake, tried one after the other."""

    def naive(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        ways = [naive(a[:-1], b) + 1, naive(a, b[:-1]) + 1, naive(a[:-1], b[:-1]) + (a[-1] != b[-1])]
        if a[-2:] == b[-2:][::-1] and len(a) > 1:
            ways.append(naive(a[:-2], b[:-2]) + 1)
        return min(ways)

    words = ["", "a", "ab", "ba", "abc", "cba", "bac", "abab", "babc", "tmep", "temp"]
    assert all(distance(a, b) == naive(a, b) for a in words for b in words)


@pytest.mark.parametrize(
    ("word", "names", "found"),
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
def test_nearest(word: str, names: list[str], found: list[str]) -> None:
    assert nearest(word, names) == found


def test_the_end_of_a_message() -> None:
    assert did_you_mean("tak", ["tab", "tag"]) == "; did you mean tab or tag?"
    assert did_you_mean("else", ["tab", "tag"]) == ""
