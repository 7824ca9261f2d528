"""The bytes as a vocabulary of llguidance, and the division of bytes into the tokens of a model."""

from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MAX_TOKEN_BYTES = 64  # of tokens that a closing consists of
Steps = list[int]  # ids of the vocabulary of bytes


class TokenTexts(Protocol):
    """What is used of a model's vocabulary: the text of each token, b"" for control tokens."""

    eos_token_id: int

    @property
    def tokens(self) -> Sequence[bytes]: ...


class ByteVocabulary:
    """The bytes as a vocabulary of llguidance, and their division into a model's tokens.

    A byte has the id `first` + byte. Control tokens keep their ids, and no other token has a text.
    """

    def __init__(self, vocabulary: TokenTexts) -> None:
        self._tokens, self.eos_token_id = vocabulary.tokens, vocabulary.eos_token_id
        self.first = -(-len(self._tokens) // 8) * 8  # where a byte of a bit mask begins

    @cached_property
    def trie(self) -> "LLTokenizer":
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(self._Wrapped(self)), eos_token=self.eos_token_id, slices=[])

    class _Wrapped:
        """The interface of TokenizerWrapper."""

        bos_token_id, special_token_ids = None, ()

        def __init__(self, vocabulary: "ByteVocabulary") -> None:
            self.eos_token_id, self._first = vocabulary.eos_token_id, vocabulary.first
            self.tokens = [b""] * self._first + [bytes([byte]) for byte in range(256)]

        def __call__(self, text: bytes) -> list[int]:
            return [self._first + byte for byte in text]

    def path_of(self, ids: Sequence[int]) -> Steps:
        """Return the bytes of tokens, and the control tokens among them."""
        return [each for id in ids for each in (self.bytes_of(self._tokens[id]) or [id])]

    def bytes_of(self, text: bytes) -> Steps:
        return [self.first + byte for byte in text]

    def tokens_of(self, path: Sequence[int]) -> list[int] | None:
        """Return the fewest tokens with these bytes; None if there are none."""
        ids: list[int] = []
        for is_text, part in groupby(path, lambda each: each >= self.first):
            steps = list(part)
            divided = self._divided(bytes(step - self.first for step in steps)) if is_text else steps
            if divided is None:
                return None
            ids += divided
        return ids

    def _divided(self, text: bytes) -> list[int] | None:
        best: list[tuple[int, int, int]] = []  # for each end: number of tokens behind it, the next token and its end
        unreachable = len(text) + 1
        for start in range(len(text), -1, -1):
            found = (0 if start == len(text) else unreachable, 0, 0)
            for end in range(start + 1, min(len(text), start + self._longest) + 1):
                id = self._ids.get(text[start:end])
                if id is not None:
                    found = min(found, (1 + best[len(text) - end][0], id, end))
            best.append(found)
        if best[-1][0] >= unreachable:
            return None
        ids, start = [], 0
        while start < len(text):
            _, id, start = best[len(text) - start]
            ids.append(id)
        return ids

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        """The first token with each text."""
        numbered = range(len(self._tokens) - 1, -1, -1)
        return {text: id for id in numbered if (text := self._tokens[id]) and len(text) <= MAX_TOKEN_BYTES}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=0)
