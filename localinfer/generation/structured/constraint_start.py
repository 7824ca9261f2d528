"""Where a constraint begins: after a marker in the text that the model generates freely before it."""

import re
from typing import NamedTuple

from .vocabulary import Vocabulary

MAX_HEAD = 1000  # bytes of a text that are compared with a beginning


class Span(NamedTuple):
    """The tags of a part of the text in which no marker counts, such as the reasoning."""

    opening: bytes
    closing: bytes


class AfterMarker:
    """A constraint begins after this marker.

    Markers within `skipped` do not count. It may only be at the beginning of the text, or be open already. The
    constraint also begins if the text begins with `beginning`; the group `constrained` is then part of the constrained
    text.
    """

    def __init__(
        self,
        marker: str,
        skipped: Span | None = None,
        beginning: re.Pattern[bytes] | None = None,
        *,
        is_skipping: bool = False,
    ) -> None:
        self._marker = marker.encode()
        self._skipped = skipped
        self._beginning = beginning
        self._head = b""  # the beginning of the text
        self._is_skipping = is_skipping
        self._is_start = True  # whether the text is only white space so far
        self._tail = b""  # the end of the text

    def accept(self, id: int, vocabulary: Vocabulary) -> bytes | None:
        """Return the text behind the marker if this token completes it, otherwise None."""
        text = vocabulary.visible_bytes(id)
        self._tail += text
        if self._skipped and self._is_start and self._tail.lstrip().startswith(self._skipped.opening):
            self._is_skipping = True
            self._tail = self._tail.lstrip().removeprefix(self._skipped.opening)
        self._is_start = self._is_start and not self._is_skipping and self._may_open()
        if self._is_skipping and self._skipped:
            _, closing, rest = self._tail.partition(self._skipped.closing)
            self._tail = rest if closing else self._tail[-len(self._skipped.closing) :]
            self._is_skipping = not closing
            self._head, text = b"", rest
        if self._is_skipping:
            return None
        if self._beginning and len(self._head) < MAX_HEAD:
            self._head += text
            if match := self._beginning.match(self._head):
                return self._head[match.start("constrained") :]
        _, marker, rest = self._tail.partition(self._marker)
        if not self._is_start:
            self._tail = self._tail[-len(self._marker) :]
        return rest if marker else None

    def _may_open(self) -> bool:
        """Return whether the text so far may begin the part to skip."""
        return self._skipped is not None and self._skipped.opening.startswith(self._tail.lstrip())
