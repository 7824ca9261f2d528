"""Split a text at special tokens, before any other tokenization step.

The longest token is matched first, anywhere in the text, then the next longest in what remains. This differs from a
left-to-right scan: of the tokens `<b` and `b>c`, the text `<b>c` contains the second. (llama.cpp does the same.)
"""

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from localinfer.tokenizer.vocabulary import CONTROL, UNKNOWN, USER_DEFINED, Vocabulary
from localinfer.tokenizer.whitespace_stripping import WHITESPACE, WhitespaceStripping

PREFIX_LENGTH = 4  # characters. Gemma has 6,000 tokens <unused0>, ...: a text without "<unu" contains none of them
TokensByPrefix = dict[str, list[tuple[str, int]]]  # first characters -> tokens and their ids
NO_STRIPPING = WhitespaceStripping()


class Match(NamedTuple):
    """A special token in a text, including the whitespace that it strips."""

    start: int
    end: int
    id: int


class Partition:
    """The special tokens of a vocabulary. `split` splits a text at them."""

    def __init__(self, vocabulary: Vocabulary, stripping: WhitespaceStripping = NO_STRIPPING) -> None:
        self._vocabulary, self._stripping = vocabulary, stripping

    def split(self, text: str, parse_special: bool, *, strip: bool = True) -> Iterator[str | int]:
        """Yield the parts of `text` in order: non-empty strings, and the ids of special tokens.

        User-defined tokens are always matched. Control tokens are matched only with `parse_special`; otherwise their
        text stays plain text. Without `strip`, whitespace next to special tokens stays.
        """
        matches = self._matches(text, parse_special, self._stripping if strip else NO_STRIPPING)
        position = 0
        for start, end, id in sorted(matches):
            if position < start:
                yield text[position:start]
            yield id
            position = end
        if position < len(text):
            yield text[position:]

    def may_continue_as_special(self, text: str) -> bool:
        """Return whether the end of the text is the beginning of a special token, without being one."""
        tokens = self._sorted_special
        for start in range(max(0, len(text) - self._longest_special + 1), len(text)):
            end = text[start:]
            at = bisect_right(tokens, end)  # the tokens that begin with it follow
            if at < len(tokens) and tokens[at].startswith(end):
                return True
        return False

    def _matches(self, text: str, parse_special: bool, stripping: WhitespaceStripping) -> list[Match]:
        """Return the matches of all special tokens, longest tokens first."""
        matched = bytearray(len(text))
        matches: list[Match] = []
        for token, id in self._occurring_tokens(text, self._special if parse_special else self._user_defined):
            strips_left, strips_right = id in stripping.left, id in stripping.right
            matches += (Match(*span, id) for span in _find_matches(text, token, matched, strips_left, strips_right))
        return matches

    @staticmethod
    def _occurring_tokens(text: str, tokens_by_prefix: TokensByPrefix) -> list[tuple[str, int]]:
        """Return the tokens that occur in the text, longest first."""
        likely = (tokens for beginning, tokens in tokens_by_prefix.items() if beginning in text)
        present = [token for tokens in likely for token in tokens if token[0] in text]
        return sorted(present, key=lambda token: len(token[0].encode()), reverse=True)

    @cached_property
    def _user_defined(self) -> TokensByPrefix:
        return self._tokens_by_prefix(USER_DEFINED)

    @cached_property
    def _special(self) -> TokensByPrefix:
        return self._tokens_by_prefix(USER_DEFINED, CONTROL, UNKNOWN)

    @cached_property
    def _sorted_special(self) -> list[str]:
        return sorted(text for tokens in self._special.values() for text, _ in tokens)

    @cached_property
    def _longest_special(self) -> int:
        return max(map(len, self._sorted_special), default=0)

    def _tokens_by_prefix(self, *types: int) -> TokensByPrefix:
        """Return the tokens grouped by their first characters. Tokens that are not UTF-8 are skipped: no text contains
        them.
        """
        tokens_by_prefix: TokensByPrefix = {}
        for id in self._vocabulary.ids_of(*types):
            token = self._vocabulary.tokens[id]
            text = token.decode("utf-8", "ignore")
            if text.encode() == token:
                tokens_by_prefix.setdefault(text[:PREFIX_LENGTH], []).append((text, id))
        return tokens_by_prefix


def _find_matches(
    text: str, token: str, matched: bytearray, strip_left: bool, strip_right: bool
) -> Iterator[tuple[int, int]]:
    """Yield the spans of `token` in characters that are not `matched`, left to right, with stripped whitespace, and set
    their `matched` flags.

    After a conflict the search continues after the whole matched range, so the time is linear.
    """
    start = text.find(token)
    while start >= 0:
        end = start + len(token)
        conflict = matched.rfind(1, start, end)
        if conflict < 0:
            while strip_left and start > 0 and text[start - 1] in WHITESPACE and not matched[start - 1]:
                start -= 1
            while strip_right and end < len(text) and text[end] in WHITESPACE and not matched[end]:
                end += 1
            matched[start:end] = b"\1" * (end - start)
            yield start, end
        else:
            end = matched.find(0, conflict)
        start = text.find(token, end) if end >= 0 else -1
