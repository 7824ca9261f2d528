"""Where special tokens stand in a text: the text is cut there before anything else happens to it.

The longest token claims its places first, anywhere in the text, then the next longest in what is left.
This is not the same as reading from left to right: of `<b` and `b>c`, `<b>c` has the second one.
Knows nothing of how the text in between becomes tokens.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from localinfer.tokenizer.swallowing import WHITESPACE, Swallowing
from localinfer.tokenizer.vocabulary import CONTROL, UNKNOWN, USER_DEFINED, Vocabulary

BEGINNING = 4  # characters. Gemma has 6,000 tokens <unused0>, ...: a text without "<unu" has none of them
Families = dict[str, list[tuple[str, int]]]  # beginning -> tokens and their ids
NOTHING = Swallowing()


class Claim(NamedTuple):
    """The stretch of a text that is a token, with the whitespace that it swallows."""

    start: int
    end: int
    id: int


class Partition:
    """The special tokens of a vocabulary, and the cutting of texts at them."""

    def __init__(self, vocabulary: Vocabulary, swallowing: Swallowing = NOTHING) -> None:
        self._vocabulary, self._swallowing = vocabulary, swallowing

    def split(self, text: str, parse_special: bool, *, swallow: bool = True) -> Iterator[str | int]:
        """The parts of `text`, in order: never empty strings, and the ids of special tokens.

        User-defined tokens are always found. Control tokens are found only with `parse_special`: without, a
        text that looks like one stays text. Nothing of the text is lost without `swallow`.
        """
        claims = self._claims(text, parse_special, self._swallowing if swallow else NOTHING)
        position = 0
        for start, end, id in sorted(claims):
            if position < start:
                yield text[position:start]
            yield id
            position = end
        if position < len(text):
            yield text[position:]

    def _claims(self, text: str, parse_special: bool, swallowing: Swallowing) -> list[Claim]:
        """What each special token takes, the longest tokens first."""
        taken = bytearray(len(text))
        claims: list[Claim] = []
        for token, id in self._present(text, self._special if parse_special else self._user_defined):
            before, behind = id in swallowing.before, id in swallowing.behind
            claims += (Claim(*span, id) for span in _claim(text, token, taken, before, behind))
        return claims

    @staticmethod
    def _present(text: str, families: Families) -> list[tuple[str, int]]:
        """The tokens that stand in the text at all, the longest first."""
        likely = (tokens for beginning, tokens in families.items() if beginning in text)
        present = [token for tokens in likely for token in tokens if token[0] in text]
        return sorted(present, key=lambda token: len(token[0].encode()), reverse=True)

    @cached_property
    def _user_defined(self) -> Families:
        return self._families(USER_DEFINED)

    @cached_property
    def _special(self) -> Families:
        return self._families(USER_DEFINED, CONTROL, UNKNOWN)

    def _families(self, *types: int) -> Families:
        """The tokens by how they begin. One that is not UTF-8 is left out: it cannot stand in a text."""
        families: Families = {}
        for id in self._vocabulary.ids_of(*types):
            token = self._vocabulary.tokens[id]
            text = token.decode("utf-8", "ignore")
            if text.encode() == token:
                families.setdefault(text[:BEGINNING], []).append((text, id))
        return families


def _claim(text: str, token: str, taken: bytearray, before: bool, behind: bool) -> Iterator[tuple[int, int]]:
    """Where `token` stands in what is not `taken`, from left to right, with whitespace; takes those characters.

    After a clash the search goes on behind the whole taken stretch, so that the time is linear.
    """
    start = text.find(token)
    while start >= 0:
        end = start + len(token)
        clash = taken.rfind(1, start, end)
        if clash < 0:
            while before and start > 0 and text[start - 1] in WHITESPACE and not taken[start - 1]:
                start -= 1
            while behind and end < len(text) and text[end] in WHITESPACE and not taken[end]:
                end += 1
            taken[start:end] = b"\1" * (end - start)
            yield start, end
        else:
            end = taken.find(0, clash)
        start = text.find(token, end) if end >= 0 else -1
