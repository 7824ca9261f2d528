"""The words that tokens consist of, with their times. A word begins with the space of a SentencePiece token."""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from localinfer.speech_recognition.decoding import RecognizedToken

SPACE = "▁"
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a token that is one byte of a character
SPECIAL = re.compile(r"<[^<>]+>")  # a token that is no text: <unk>, <pad>
ENDS_WITHOUT_SPACE = "。！？"  # of sentences in languages that have no spaces between words


class Word(NamedTuple):
    """A word and its times in seconds. `is_joined` is true if no space precedes it."""

    start: float
    end: float
    text: str
    is_joined: bool = False


class WordBuilder:
    """Joins tokens that arrive one after the other to words.

    Rows of the encoder last `seconds_per_row`; no word ends after `total` seconds. With `has_durations`, a punctuation
    mark has the time at which the token before it ends, as in NeMo: its own duration says little.
    """

    def __init__(
        self, pieces: tuple[str, ...], seconds_per_row: float, total: float, *, has_durations: bool
    ) -> None:
        self._pieces, self._seconds, self._total = pieces, seconds_per_row, total
        self._has_durations = has_durations
        self._text, self._start, self._end, self._is_joined = b"", 0, 0, False

    def feed(self, tokens: Iterable[RecognizedToken]) -> Iterator[Word]:
        """Yield the words that are complete."""
        for token in tokens:
            piece = self._pieces[token.id]
            is_byte = BYTE.fullmatch(piece)
            if SPECIAL.fullmatch(piece) and not is_byte:
                continue
            if piece.startswith(SPACE) or self._text.decode("utf-8", "replace").endswith(tuple(ENDS_WITHOUT_SPACE)):
                yield from self.finish(is_joined=not piece.startswith(SPACE))
            text = bytes([int(is_byte[1], 16)]) if is_byte else piece.replace(SPACE, " ").encode()
            if not self._text.strip():
                self._start = token.start
            if not (self._has_durations and self._text and is_punctuation(piece)):
                self._end = token.end
            self._text += text

    def finish(self, *, is_joined: bool = False) -> Iterator[Word]:
        """Yield the last word. `is_joined` says whether the next one follows without a space."""
        text = " ".join(self._text.decode("utf-8", "replace").split())
        if text:
            start, end = (min(row * self._seconds, self._total) for row in (self._start, self._end))
            yield Word(start, end, text, self._is_joined)
        self._text, self._is_joined = b"", is_joined


def is_punctuation(piece: str) -> bool:
    """Return whether a token is a punctuation mark without a space before it."""
    return len(piece) == 1 and unicodedata.category(piece).startswith("P")


def join(words: Iterable[Word]) -> str:
    """Return the text of words."""
    return "".join(word.text if word.is_joined else f" {word.text}" for word in words).strip()
