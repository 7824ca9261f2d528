"""N-gram drafts (prompt lookup): the tokens that followed an earlier occurrence of the last tokens are the draft.

Texts that are edited, quoted or inserted repeat long passages of the prompt (LLMA; Yang et al., 2023). Matches are
found as in deflate: the positions at which the same n-gram ends form a chain, latest first, and the first few are
compared. While draft tokens of a match are accepted, there is no new search, so the total time is linear.
"""

from collections.abc import Iterable, Iterator
from itertools import takewhile

from localinfer.generation.speculative.draft_length import DraftLengthModel

NGRAM_SIZE = 2  # minimum length of a match in tokens
MAX_CANDIDATES = 16  # positions of the chain that are compared
MAX_MATCH = 32  # tokens that are compared; of longer matches the latest one wins


class PromptLookup:
    """A drafter that follows a text token by token.

    `match_length` is the length of the current match: that many last tokens occurred earlier, and the tokens after that
    occurrence are the draft. Acceptance rates are measured also for tokens that were not drafted, so the value of a
    draft is known before the first one.
    """

    is_cheap = True

    def __init__(self, length_model: DraftLengthModel) -> None:
        self.match_length = 0
        self._length_model = length_model
        self._count = 0  # the chosen draft length
        self._match_end = 0  # position after the match's earlier occurrence
        self._ids: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}  # position after the last occurrence of each n-gram
        self._previous: list[int] = []  # for each position, the position of the previous occurrence, or 0

    def accept_prompt(self, ids: Iterable[int]) -> None:
        """Process the tokens of the prompt."""
        for id in ids:
            self._append(id)
        self._search()

    def accept(self, id: int) -> None:
        """Process the next token of the text."""
        is_accepted = False
        if self.match_length:
            is_accepted = self._ids[self._match_end] == id
            self._length_model.match_acceptance.update(self.match_length, is_accepted)
        self._append(id)
        if is_accepted:
            self.match_length, self._match_end = self.match_length + 1, self._match_end + 1
        else:
            self._search()

    def choose_length(self, min_tokens: int, max_tokens: int) -> float:
        self._count, gain = self._length_model.best_length(self._acceptance_rates(), min_tokens, max_tokens)
        return gain

    def draft(self) -> list[int]:
        """Return the draft of the chosen length. It ends before a row of an image or a sound, which has a negative id.

        If the match overlaps the end of the text, the text is periodic, and the draft continues the period.
        """
        period = len(self._ids) - self._match_end
        following = (self._ids[self._match_end + number % period] for number in range(self._count))
        return list(takewhile(lambda id: id >= 0, following))

    def _acceptance_rates(self) -> Iterator[float]:
        """Yield the probability that each of the next draft tokens is accepted if all before it are."""
        length = self.match_length
        while length:
            yield self._length_model.match_acceptance.rate(length)
            length += 1

    def _append(self, id: int) -> None:
        ids = self._ids
        ids.append(id)
        last = tuple(ids[-NGRAM_SIZE:])
        self._previous.append(self._latest.get(last, 0))
        self._latest[last] = len(ids)

    def _search(self) -> None:
        """Find the longest match among the candidates."""
        self.match_length, position = 0, self._previous[-1] if self._previous else 0
        for _ in range(MAX_CANDIDATES):
            if position < NGRAM_SIZE:
                break
            if (common := self._common_suffix(position)) > self.match_length:
                self.match_length, self._match_end = common, position
            position = self._previous[position - 1]

    def _common_suffix(self, position: int) -> int:
        """Return the length of the common suffix of the text and its first `position` tokens."""
        ids, end = self._ids, len(self._ids)
        max_length = min(position, MAX_MATCH)
        return next((n for n in range(max_length) if ids[position - 1 - n] != ids[end - 1 - n]), max_length)
