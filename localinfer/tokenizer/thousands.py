"""Numbers cut into groups of three from the right, as thousands are written.

A regular expression would look to the end of the number from each of its groups, in quadratic time.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from localinfer.tokenizer.unicode import members


def numbers_with_text_before(text: str) -> list[str]:
    """Each number's first group keeps the text before it: "is 1234567." -> "is 1", "234", "567", "."."""
    return _cut(text, (cut for start, end in _numbers(text) for cut in range(start + _first(start, end), end + 1, 3)))


def numbers_apart(text: str) -> list[str]:
    """Of all numbers, only those in ASCII are grouped: "is 1234567." -> "is ", "1", "234", "567", "."."""
    cuts: list[int] = []
    for start, end in _numbers(text):
        cuts.append(start)
        for digits in re.finditer("[0-9]+", text[start:end]):
            first, last = start + digits.start(), start + digits.end()
            cuts += range(first + (last - first) % 3, last, 3)
        cuts.append(end)
    return _cut(text, cuts)


def _numbers(text: str) -> Iterator[tuple[int, int]]:
    """Where each run of \\p{N} starts and ends."""
    if digits := members(text, r"\p{N}"):
        yield from (number.span() for number in re.finditer(f"[{''.join(digits)}]+", text))


def _first(start: int, end: int) -> int:
    """How many digits the first group of a number has."""
    return (end - start) % 3 or 3


def _cut(text: str, places: Iterable[int]) -> list[str]:
    return [text[start:end] for start, end in pairwise((0, *places, len(text))) if start < end]
