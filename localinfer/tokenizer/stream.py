"""Tokens to text while they come: a character whose bytes lie in two tokens appears when it is whole."""

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Bytes that are not UTF-8 become U+FFFD, but never because the rest of a character is still to come."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """The characters that this token completes; often "" in the middle of an emoji."""
        return self._utf8.decode(self._token_bytes(id))

    @property
    def unfinished(self) -> bool:
        """Are there bytes of a character whose rest is still to come?"""
        return bool(self._utf8.getstate()[0])

    def flush(self) -> str:
        """What is left at the end: "" or U+FFFD for a character that was never finished."""
        return self._utf8.decode(b"", final=True)
