"""The names that a misspelt one may have been meant to be."""

from collections.abc import Iterable

LETTERS_A_MISTAKE = 4  # so many letters of a name excuse one mistake ...
MOST_MISTAKES = 3  # ... and never more than these


def nearest(word: str, names: Iterable[str]) -> list[str]:
    """Those of `names` that are the fewest mistakes away, if that is few for a word of this length; otherwise the
    shortest one that it begins.

    Of words with one or two letters nothing can be guessed: they are near to all others.
    """
    letters = len(word.strip("-"))
    most = min(max(1, letters // LETTERS_A_MISTAKE), MOST_MISTAKES) if letters > 2 else 0
    by_distance: dict[int, list[str]] = {}
    for name in (names := list(names)):
        if abs(len(name) - len(word)) <= most:
            by_distance.setdefault(distance(word.lower(), name.lower()), []).append(name)
    least = min(by_distance, default=most + 1)
    begun = [name for name in names if letters > 2 and name.lower().startswith(word.lower())]
    return by_distance[least] if least <= most else sorted(begun, key=len)[:1]


def distance(a: str, b: str) -> int:
    """How many letters must be put in, left out, changed or swapped with the next one to make b of a.

    Optimal string alignment, as Damerau (1964) counts mistakes of typing.
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
    """The end of an error message; "" if there is nothing to guess."""
    near = nearest(word, names)
    return f"; did you mean {' or '.join(near)}?" if near else ""
