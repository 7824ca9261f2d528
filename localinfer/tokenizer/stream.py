"""Incremental detokenization: a character split over several tokens is emitted once it is complete."""

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Decodes tokens to text one at a time. Invalid UTF-8 becomes U+FFFD; incomplete characters are buffered."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """Return the characters that this token completes; often "" in the middle of an emoji."""
        return self._utf8.decode(self._token_bytes(id))

    @property
    def has_pending_bytes(self) -> bool:
        """Whether bytes of an incomplete character are buffered."""
        return bool(self._utf8.getstate()[0])

    def flush(self) -> str:
        """Return the text at the end of the stream: "", or U+FFFD for an incomplete character."""
        return self._utf8.decode(b"", final=True)
