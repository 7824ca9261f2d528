"""Find the tokens that start at a position of a text, longest first."""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

Text = TypeVar("Text", str, bytes)
PREFIX_LENGTH = 3  # characters, or bytes


class PrefixIndex(Generic[Text]):
    """An index of tokens by their first characters, which give the few lengths that need to be tried."""

    def __init__(self, ids: Mapping[Text, int]) -> None:
        lengths: dict[Text, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[:PREFIX_LENGTH], set()).add(len(text))
        for beginning, known in lengths.items():
            known.update(n for n in range(1, len(beginning)) if beginning[:n] in ids)
        self._ids: Mapping[Text, int] = ids
        self._lengths: dict[Text, list[int]] = {
            beginning: sorted(known, reverse=True) for beginning, known in lengths.items()
        }

    def matches(self, text: Text, start: int) -> Iterator[tuple[int, int]]:
        """Yield the end and the id of each token that starts at `start`, longest first."""
        for length in self._lengths_at(text, start):
            id = self._ids.get(text[start : start + length])
            if id is not None and start + length <= len(text):
                yield start + length, id

    def _lengths_at(self, text: Text, start: int) -> list[int]:
        for n in range(PREFIX_LENGTH, 0, -1):
            if lengths := self._lengths.get(text[start : start + n]):
                return lengths
        return []
