"""Which tokens stand at a place of a text, the longest first."""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

Text = TypeVar("Text", str, bytes)
BEGINNING = 3  # characters, or bytes


class Prefixes(Generic[Text]):
    """How a token begins tells which lengths to try: a handful, whatever the vocabulary."""

    def __init__(self, ids: Mapping[Text, int]) -> None:
        lengths: dict[Text, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[:BEGINNING], set()).add(len(text))
        for beginning, known in lengths.items():
            known.update(n for n in range(1, len(beginning)) if beginning[:n] in ids)
        self._ids: Mapping[Text, int] = ids
        self._lengths: dict[Text, list[int]] = {
            beginning: sorted(known, reverse=True) for beginning, known in lengths.items()
        }

    def at(self, text: Text, start: int) -> Iterator[tuple[int, int]]:
        """The end and the id of each token that stands at `start`."""
        for length in self._lengths_at(text, start):
            id = self._ids.get(text[start : start + length])
            if id is not None and start + length <= len(text):
                yield start + length, id

    def _lengths_at(self, text: Text, start: int) -> list[int]:
        for n in range(BEGINNING, 0, -1):
            if lengths := self._lengths.get(text[start : start + n]):
                return lengths
        return []
