"""Links that make what was said before less probable: penalties for tokens, and DRY for sequences of them.

Knows nothing of texts, but for `Breakers`, which is told how they become tokens.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from .candidates import Candidates, Floats, Ids, find, possible

LOG_OF_LARGEST = 88.7228391  # of a float32: a penalty for a long repetition stays below it
MAX_CHARACTERS = 40  # of a sequence breaker
MAX_TAIL = 20  # tokens


def last(recent: Sequence[int], n: int) -> Sequence[int]:
    """The last `n` of the recent tokens; -1 is all of them."""
    return recent if n < 0 else recent[max(0, len(recent) - n) :]


def penalized(
    candidates: Candidates, recent: Sequence[int], repeat: float, frequency: float = 0.0, presence: float = 0.0
) -> Candidates:
    """Candidates whose recent tokens are less probable.

    Their logits are divided by `repeat` if positive and multiplied if not (Keskar et al., 2019, for both signs), then
    `presence` is taken away, and `frequency` for each time that the token occurs.
    """
    if not len(recent) or (repeat == 1 and frequency == presence == 0):
        return candidates
    ids, counts = np.unique(np.asarray(recent, dtype=np.intp), return_counts=True)
    places, which = find(candidates, ids)
    logits = candidates.logits[places]
    with np.errstate(all="ignore"):  # a tiny penalty may make a logit infinite
        logits = np.where(logits > 0, logits / repeat, logits * repeat) - (counts[which] * frequency + presence)
    return replaced(candidates, places, logits)


def replaced(candidates: Candidates, places: Ids, logits: Floats) -> Candidates:
    """Candidates with these logits at these places."""
    changed = candidates.logits.copy()
    changed[places] = logits
    return Candidates(candidates.ids, changed if np.isfinite(changed[places]).all() else possible(changed))


class Breakers:
    """Texts that a repetition does not reach across: which tokens begin one, found out as tokens come by.

    A token that contains such a text breaks a sequence alone; one whose end is the beginning of such a text does so
    together with the tokens of the rest.
    """

    def __init__(
        self, texts: Sequence[str], token_bytes: Callable[[int], bytes], encode: Callable[[str], list[int]]
    ) -> None:
        self._texts = [text[:MAX_CHARACTERS] for text in texts]
        self._token_bytes, self._encode = token_bytes, encode
        self._tails: dict[int, list[list[int]]] = {}

    def tails(self, id: int) -> list[list[int]]:
        """What has to follow this token to make a breaker; an empty one if the token is a breaker by itself."""
        if id not in self._tails:
            self._tails[id] = [tail for text in self._texts for tail in self._found(text, id)]
        return self._tails[id]

    def _found(self, text: str, id: int) -> list[list[int]]:
        token, searched = self._token_bytes(id), text.encode()
        if searched in token:
            return [[]]
        overlaps = (n for n in range(1, min(len(searched), len(token) + 1)) if token.endswith(searched[:n]))
        return [self._encode(searched[n:].decode("utf-8", "replace"))[:MAX_TAIL] for n in overlaps]

    def tokens_since(self, window: Sequence[int]) -> int:
        """How many tokens of the window come after the last breaker."""
        for since in range(len(window)):
            tails = self.tails(window[-1 - since])
            if tails:
                behind = list(window[len(window) - since :][:MAX_TAIL])
                matching = [len(tail) for tail in tails if behind[: len(tail)] == tail]
                if matching:
                    return since - max(matching)
        return len(window)


NO_BREAKERS = Breakers((), lambda _: b"", lambda _: [])


def dry(
    candidates: Candidates,
    window: Sequence[int],
    breakers: Breakers,
    multiplier: float,
    base: float,
    allowed_length: int,
) -> Candidates:
    """Candidates among which those are less probable that would go on with a repetition ("don't repeat yourself").

    A token that would make the last n tokens of the window a repetition of n + 1 loses multiplier * base ** (n -
    allowed_length), if n is at least allowed_length. The source of idea and formula is text-generation-webui's pull
    request 5677.
    """
    if multiplier == 0 or base < 1 or len(window) <= allowed_length:
        return candidates
    longest = breakers.tokens_since(window)
    if longest < allowed_length:
        return candidates
    if base > 1.000001:
        longest = min(longest, allowed_length + int(LOG_OF_LARGEST / math.log(base)))
    ids, lengths = continuations(np.asarray(window, dtype=np.intp), longest)
    penalties = {
        id: multiplier * base ** (length - allowed_length)
        for id, length in zip(ids.tolist(), lengths.tolist(), strict=True)
        if length >= allowed_length and [] not in breakers.tails(id)
    }
    if not penalties:
        return candidates
    places, which = find(candidates, np.fromiter(penalties, np.intp))
    lost = np.fromiter(penalties.values(), np.float64)[which]
    return replaced(candidates, places, candidates.logits[places] - lost)


def continuations(window: Ids, longest: int) -> tuple[Ids, Ids]:
    """What followed when the window's end occurred in it before: tokens in ascending order, and how many were alike.

    Of several occurrences before the same token the one counts that is alike for most tokens, at most `longest`.
    """
    ends = np.arange(window.size - 1)  # of earlier occurrences
    lengths = np.zeros(window.size - 1, np.intp)
    for n in range(longest):
        ends = ends[ends >= n]
        ends = ends[window[ends - n] == window[-1 - n]]
        if not ends.size:
            break
        lengths[ends] = n + 1
    ids, inverse = np.unique(window[1:], return_inverse=True)
    alike = np.zeros(ids.size, np.intp)
    np.maximum.at(alike, inverse, lengths)
    return ids, alike
