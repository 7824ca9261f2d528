"""Spelling suggestions for misspelt names."""

from collections.abc import Iterable

LETTERS_PER_TYPO = 4  # a name may have one typo per 4 letters
MAX_TYPOS = 3


def closest_names(word: str, names: Iterable[str]) -> list[str]:
    """Return the names with the smallest edit distance to `word`, if it is small for a word of this length.

    Otherwise return the shortest name that starts with `word`, if any. Words of one or two letters have no
    suggestions, because they are close to every short name.
    """
    letters = len(word.strip("-"))
    most = min(max(1, letters // LETTERS_PER_TYPO), MAX_TYPOS) if letters > 2 else 0
    by_distance: dict[int, list[str]] = {}
    for name in (names := list(names)):
        if abs(len(name) - len(word)) <= most:
            by_distance.setdefault(edit_distance(word.lower(), name.lower()), []).append(name)
    least = min(by_distance, default=most + 1)
    matches = [name for name in names if letters > 2 and name.lower().startswith(word.lower())]
    return by_distance[least] if least <= most else sorted(matches, key=len)[:1]


def edit_distance(a: str, b: str) -> int:
    """Return the optimal string alignment distance: insertions, deletions, substitutions and transpositions.

    Source: F. J. Damerau, "A technique for computer detection and correction of spelling errors", 1964.
    """
    rows = [list(range(len(b) + 1))]
    for i, letter in enumerate(a, 1):
        row = [i]
        for j, other in enumerate(b, 1):
            best = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != other))
            if i > 1 and j > 1 and (letter, a[i - 2]) == (b[j - 2], other):
                best = min(best, rows[-2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return "; did you mean ...?" for the end of an error message, or "" without a suggestion."""
    near = closest_names(word, names)
    return f"; did you mean {' or '.join(near)}?" if near else ""
