"""Samplers that penalize repetition: penalties for single tokens, and DRY for token sequences.

Only `SequenceBreakers` handles texts; it receives functions that convert them to tokens.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from .candidates import Candidates, Floats, Ids, find, sanitize_logits

LOG_MAX_PENALTY = 88.7228391  # logarithm of the largest float32, a bound for DRY penalties
MAX_CHARACTERS = 40  # longer sequence breakers are truncated
MAX_TAIL = 20  # tokens of a sequence breaker's tail


def last_tokens(recent: Sequence[int], n: int) -> Sequence[int]:
    """Return the last `n` recent tokens; all for -1. Rows of images and sounds, which have negative ids, do not count.
    """
    last = recent if n < 0 else recent[max(0, len(recent) - n) :]
    if min(last, default=0) >= 0:
        return last
    of_vocabulary = [id for id in recent if id >= 0]
    return of_vocabulary if n < 0 else of_vocabulary[max(0, len(of_vocabulary) - n) :]


def apply_penalties(
    candidates: Candidates, recent: Sequence[int], repeat: float, frequency: float = 0.0, presence: float = 0.0
) -> Candidates:
    """Return the candidates with lower logits for recent tokens.

    Positive logits are divided by `repeat` and others multiplied (Keskar et al., 2019, for both signs); then `presence`
    is subtracted, and `frequency` for each occurrence of the token.
    """
    if not len(recent) or (repeat == 1 and frequency == presence == 0):
        return candidates
    ids, counts = np.unique(np.asarray(recent, dtype=np.intp), return_counts=True)
    positions, indices = find(candidates, ids)
    logits = candidates.logits[positions]
    with np.errstate(all="ignore"):  # a tiny penalty may overflow
        logits = np.where(logits > 0, logits / repeat, logits * repeat) - (counts[indices] * frequency + presence)
    return replace_logits(candidates, positions, logits)


def replace_logits(candidates: Candidates, positions: Ids, logits: Floats) -> Candidates:
    """Return the candidates with new logits at these positions."""
    updated = candidates.logits.copy()
    updated[positions] = logits
    return Candidates(candidates.ids, updated if np.isfinite(updated[positions]).all() else sanitize_logits(updated))


class SequenceBreakers:
    """Texts that end a repetition, matched by tokens that are looked up on first use.

    A token that contains such a text is a breaker. A token that ends with the beginning of such a text is a breaker
    together with the tokens of the remaining text.
    """

    def __init__(
        self, texts: Sequence[str], token_bytes: Callable[[int], bytes], encode: Callable[[str], list[int]]
    ) -> None:
        self._texts = [text[:MAX_CHARACTERS] for text in texts]
        self._token_bytes, self._encode = token_bytes, encode
        self._tails: dict[int, list[list[int]]] = {}

    def tails(self, id: int) -> list[list[int]]:
        """Return the token lists that complete a breaker after this token; an empty list if the token is a breaker by
        itself."""
        if id not in self._tails:
            self._tails[id] = [tail for text in self._texts for tail in self._tails_of_text(text, id)]
        return self._tails[id]

    def _tails_of_text(self, text: str, id: int) -> list[list[int]]:
        token, searched = self._token_bytes(id), text.encode()
        if searched in token:
            return [[]]
        overlaps = (n for n in range(1, min(len(searched), len(token) + 1)) if token.endswith(searched[:n]))
        return [self._encode(searched[n:].decode("utf-8", "replace"))[:MAX_TAIL] for n in overlaps]

    def tokens_since(self, window: Sequence[int]) -> int:
        """Return the number of tokens of the window after the last breaker."""
        for since in range(len(window)):
            tails = self.tails(window[-1 - since])
            if tails:
                following = list(window[len(window) - since :][:MAX_TAIL])
                matching = [len(tail) for tail in tails if following[: len(tail)] == tail]
                if matching:
                    return since - max(matching)
        return len(window)


NO_SEQUENCE_BREAKERS = SequenceBreakers((), lambda _: b"", lambda _: [])


def dry(
    candidates: Candidates,
    window: Sequence[int],
    sequence_breakers: SequenceBreakers,
    multiplier: float,
    base: float,
    allowed_length: int,
) -> Candidates:
    """Return the candidates with lower logits for tokens that continue a repetition ("don't repeat yourself").

    A token that extends a repetition of n tokens at the end of the window to n + 1 loses multiplier * base ** (n -
    allowed_length), if n is at least allowed_length. Source: text-generation-webui, pull request 5677.
    """
    if multiplier == 0 or base < 1 or len(window) <= allowed_length:
        return candidates
    longest = sequence_breakers.tokens_since(window)
    if longest < allowed_length:
        return candidates
    if base > 1.000001:
        longest = min(longest, allowed_length + int(LOG_MAX_PENALTY / math.log(base)))
    ids, lengths = repeated_continuations(np.asarray(window, dtype=np.intp), longest)
    penalties = {
        id: multiplier * base ** (length - allowed_length)
        for id, length in zip(ids.tolist(), lengths.tolist(), strict=True)
        if length >= allowed_length and [] not in sequence_breakers.tails(id)
    }
    if not penalties:
        return candidates
    positions, indices = find(candidates, np.fromiter(penalties, np.intp))
    amounts = np.fromiter(penalties.values(), np.float64)[indices]
    return replace_logits(candidates, positions, candidates.logits[positions] - amounts)


def repeated_continuations(window: Ids, max_length: int) -> tuple[Ids, Ids]:
    """Return the distinct tokens of the window but its first, ascending, and for each the length of its longest match.

    A match is an occurrence of a suffix of the window (at most `max_length` tokens) that this token follows: if the
    model chose the token next, it would repeat that many tokens. The length is 0 if there is none.
    """
    match_ends = np.arange(window.size - 1)  # last positions of earlier occurrences
    lengths = np.zeros(window.size - 1, np.intp)
    for n_matched in range(max_length):
        match_ends = match_ends[match_ends >= n_matched]
        match_ends = match_ends[window[match_ends - n_matched] == window[-1 - n_matched]]
        if not match_ends.size:
            break
        lengths[match_ends] = n_matched + 1
    ids, inverse = np.unique(window[1:], return_inverse=True)
    longest = np.zeros(ids.size, np.intp)
    np.maximum.at(longest, inverse, lengths)
    return ids, longest
