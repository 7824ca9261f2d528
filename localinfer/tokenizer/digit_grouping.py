"""Split numbers into groups of three digits, counted from the right, like thousands separators.

A regular expression would scan to the end of the number from each group, in quadratic time.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from localinfer.tokenizer.unicode import characters_in


def group_digits_with_prefix(text: str) -> list[str]:
    """Split text; each number's first group keeps the text before it: "is 1234567." -> "is 1", "234", "567", "."."""
    return _split_at(
        text,
        (
            offset
            for start, end in _numbers(text)
            for offset in range(start + _first_group_digits(start, end), end + 1, 3)
        ),
    )


def group_ascii_digits(text: str) -> list[str]:
    """Split text around numbers and group ASCII digits only: "is 1234567." -> "is ", "1", "234", "567", "."."""
    offsets: list[int] = []
    for start, end in _numbers(text):
        offsets.append(start)
        for digits in re.finditer("[0-9]+", text[start:end]):
            first, last = start + digits.start(), start + digits.end()
            offsets += range(first + (last - first) % 3, last, 3)
        offsets.append(end)
    return _split_at(text, offsets)


def _numbers(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each run of \\p{N}."""
    if digits := characters_in(text, r"\p{N}"):
        yield from (number.span() for number in re.finditer(f"[{''.join(digits)}]+", text))


def _first_group_digits(start: int, end: int) -> int:
    """Return the number of digits in the first group of a number."""
    return (end - start) % 3 or 3


def _split_at(text: str, offsets: Iterable[int]) -> list[str]:
    return [text[start:end] for start, end in pairwise((0, *offsets, len(text))) if start < end]
