"""The closing of an answer: a few tokens that complete it, from any state of its grammar.

An answer that reaches its limit of tokens ends with its closing. The search knows nothing of JSON: it walks through the
grammar byte by byte with a matcher whose vocabulary is the 256 bytes, which takes microseconds a byte. Where several
bytes are allowed it prefers those that close something, and where it comes past the same choice again, those that it
has not tried. Within a text it tries what the grammar says of texts. Walks that leave the first one at one choice may
be shorter. The bytes that were found are then divided into the fewest tokens.

All of this is bounded by the number of bytes, so that the same answer has the same closing on every machine.
"""

import re
from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from time import process_time
from typing import TYPE_CHECKING, NamedTuple

from .byte_vocabulary import ByteVocabulary, Steps
from .grammar_texts import control_tokens_of, literals_of, patterns_of

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_STEPS = 4000  # bytes of a walk, and of what is tried for it; each takes about 20 microseconds
MAX_STEPS_OF_ANSWER = 100_000  # of all its searches
MAX_SECONDS = 1.0  # of CPU time, for grammars that take far longer
MAX_ITEMS = 2  # of a list, after which its end is looked for
MAX_CHOICES = 12  # that are tried at one place of a walk in order to shorten it
SHORTENING_STEPS = 1000  # bytes of all walks that may shorten a closing
PATIENCE = 32  # bytes of a text after which it is looked for an end again

CLOSERS = b"}])\"'"
PLAIN = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
KINDS = b"0:A[a{"  # where kinds of bytes begin and end
RANKS = CLOSERS + b"," + PLAIN, b":;=>-+.", b"[{("  # the preferred ones first; a comma ends a number
LAST = b" \n\t\r\\"  # white space rarely leads on, and an escape is longer than what it stands for
ENDS_OF_TEXT = b"\"'}])>`;\n<@:,=/ .-_+*|~!?#$&^([{\t"  # what is tried in this order
PROGRESS = frozenset(b"\"}],:")  # bytes after which a choice that returns is a new one
ESCAPED = re.compile(rb'["\\\x00-\x1f]')  # characters that JSON escapes


def preference(byte: int) -> tuple[int, int]:
    """Return the order of a byte among those that are allowed."""
    for rank, group in enumerate(RANKS):
        if (place := group.find(byte)) >= 0:
            return rank, place
    return len(RANKS) + (byte in LAST) + 2 * (byte >= 0x80), byte


PREFERRED = sorted(range(256), key=preference)


@lru_cache(maxsize=4096)
def preferred(mask: bytes) -> tuple[int, ...]:
    """Return the bytes that a mask of 256 bits allows, the preferred ones first."""
    bits = int.from_bytes(mask, "little")
    return tuple(byte for byte in PREFERRED if bits >> byte & 1)


@lru_cache(maxsize=4096)
def varied(mask: bytes) -> tuple[int, ...]:
    """Return the same, but of digits and letters first one of each kind, then another one of each."""
    numbers = Counter[int]()
    ranked = []
    for byte in preferred(mask):
        kind = bisect(KINDS, byte)
        rank, _ = preference(byte)
        numbers[kind] += 1
        ranked.append((rank, numbers[kind] if byte in PLAIN else 0, byte))
    return tuple(byte for *_, byte in sorted(ranked, key=lambda each: each[:2]))


@lru_cache(maxsize=4096)
def is_text(mask: bytes) -> bool:
    """Return whether a mask allows all letters and digits, as within a string."""
    return set(PLAIN) <= set(preferred(mask))


class Walk:
    """A walk through a grammar from a state, of which `path` is kept and the rest found.

    Where it comes past the same choice again, it takes another way. Without `is_thorough` it forgets the earlier ways
    behind what is probably progress. `choices` has, for each place where several bytes were allowed, its index in the
    path and the other bytes.
    """

    def __init__(
        self, closings: "Closings", state: "LLMatcher", path: Sequence[int] = (), *, is_thorough: bool = False
    ) -> None:
        self._closings, self._matcher, self._is_thorough = closings, state.deep_copy(), is_thorough
        self.path, self.choices = list(path), list[tuple[int, Steps]]()
        self._used = Counter[tuple[bytes, bytes | int]]()  # how often each step was chosen under each mask
        self._chosen = Counter[tuple[bytes, int]]()  # the same, without forgetting
        self._endless: dict[bytes, int] = {}  # masks of texts whose end is not looked for, and for how many bytes

    def is_complete(self) -> bool:
        """Walk, and return whether the answer is complete at the end of the path."""
        matcher, spend = self._matcher, self._closings.spend
        if self.path and not matcher.consume_tokens(self.path):
            return False
        while not matcher.is_accepting():
            if not spend(1) or not (step := self._next_step()) or not matcher.consume_tokens(step):
                return False
            self.path += step
        return True

    def _next_step(self) -> Steps:
        mask, controls = self._closings.allowed(self._matcher)
        if not mask and not controls:
            return []
        if not controls and is_text(mask) and (end := self._end_of_text(mask)):
            return end
        first = self._closings.vocabulary.first
        # The closing bytes would be part of a text.
        options = [*controls, *(first + byte for byte in (PLAIN if is_text(mask) else varied(mask)))]
        chosen = min(options, key=lambda each: self._used[mask, each])
        if len(options) > 1:
            chosen = self._way_out(mask, chosen, options)
            self.choices.append((len(self.path), [each for each in options if each != chosen][:MAX_CHOICES]))
        self._used[mask, chosen] += 1
        if not self._is_thorough and chosen - first in PROGRESS:
            self._used.clear()
        return [chosen]

    def _way_out(self, mask: bytes, chosen: int, options: Steps) -> int:
        """Return what leads out of a list: an option that was not chosen and after which the chosen one is excluded."""
        self._chosen[mask, chosen] += 1
        if self._chosen[mask, chosen] <= MAX_ITEMS or chosen - self._closings.vocabulary.first in set(CLOSERS):
            return chosen
        for option in options[:MAX_CHOICES]:
            if not self._chosen[mask, option] and self._closings.spend(1):
                self._chosen[mask, option] = 1
                matcher = self._matcher.deep_copy()
                if matcher.consume_token(option) and not matcher.try_consume_tokens([chosen]):
                    return option
        return chosen

    def _end_of_text(self, mask: bytes) -> Steps:
        """Return bytes after which something else is allowed, best not a text; none if they were not found."""
        if self._endless.get(mask, 0) > 0:
            self._endless[mask] -= 1
            return []
        vocabulary, allowed, found = self._closings.vocabulary, preferred(mask), b""
        ends = [bytes([byte]) for byte in ENDS_OF_TEXT if byte in allowed]
        for end in sorted([*ends, *self._closings.literals], key=lambda end: self._used[mask, end]):
            if not self._closings.spend(len(end)):
                break
            path, matcher = vocabulary.bytes_of(end), self._matcher.deep_copy()
            if matcher.try_consume_tokens(path) == len(path):
                after, controls = self._closings.allowed(matcher)
                if matcher.is_accepting() or controls or (after and not is_text(after)):
                    found = end
                    break
                found = found or (end if after not in (b"", mask) else b"")
        self._used[mask, found] += 1
        if not found:
            self._endless[mask] = PATIENCE
        return vocabulary.bytes_of(found)


class Found(NamedTuple):
    """What a search has found: a path that completes the answer, and its tokens."""

    path: Steps | None = None
    ids: list[int] | None = None

    @property
    def n_tokens(self) -> int:
        return MAX_STEPS if self.ids is None else len(self.ids)

    def fits(self, limit: int) -> bool:
        return self.ids is not None and len(self.ids) <= limit


class Closings:
    """The closings of one answer. `follow` is told its tokens."""

    def __init__(self, grammar: str, vocabulary: ByteVocabulary) -> None:
        from llguidance import LLMatcher

        self.vocabulary = vocabulary
        self.literals = [*literals_of(grammar), *examples(patterns_of(grammar), vocabulary)]
        self._matcher = LLMatcher(vocabulary.trie, grammar, log_level=0)
        self._controls = control_tokens_of(grammar)
        self._closing: Steps | None = None  # that of the present state, if it is known
        self._after: tuple[Steps, Steps] | None = None  # the last candidate, and the closing after it
        self._steps, self._steps_of_answer, self._deadline = 0, MAX_STEPS_OF_ANSWER, 0.0
        self._futile = 0  # the last limit to which a closing could not be shortened

    def follow(self, ids: Sequence[int]) -> None:
        """Advance by tokens of the answer."""
        path = self.vocabulary.path_of(ids)
        self._matcher.consume_tokens(path)
        self._closing = self._after[1] if self._after and self._after[0] == path else None
        self._after = None

    def now(self, limit: int) -> Found:
        """Return what completes the answer, in at most `limit` tokens if possible."""
        return self._search(self._matcher, self._closing, limit)

    def after(self, id: int, limit: int) -> Found:
        """Return what completes the answer after this token, in at most `limit` tokens if possible."""
        path, state = self.vocabulary.path_of([id]), self._matcher.deep_copy()
        if not state.consume_tokens(path):
            return Found()
        known = self._closing
        if known is not None and known[: len(path)] == path:
            known = known[len(path) :]
        found = self._search(state, known, limit)
        self._after = (path, found.path) if found.path is not None else None
        return found

    def _search(self, state: "LLMatcher", known: Steps | None, limit: int) -> Found:
        """Return the closing of a state, with at most `limit` tokens if it is found. `known` may be one."""
        self._steps, self._deadline = MAX_STEPS, process_time() + MAX_SECONDS
        if known is not None and self._completes(state, known):
            found = self._found(known)
            if found.fits(limit):
                return found
        walk = Walk(self, state)
        if not walk.is_complete():
            self._steps = MAX_STEPS
            walk = Walk(self, state, is_thorough=True)
            if not walk.is_complete():
                return Found()
        found = self._found(walk.path)
        if not found.fits(limit) and not (found.n_tokens > 2 * limit and self._futile // 2 < limit <= self._futile):
            found = self._shortened(state, walk, found, limit)
            self._futile = 0 if found.fits(limit) else limit
        return found

    def _shortened(self, state: "LLMatcher", walk: Walk, found: Found, limit: int) -> Found:
        """Return the closing with the fewest tokens, or any with at most `limit`, of walks that leave a walk at one
        place, and then leave the shortest of these."""
        self._steps = SHORTENING_STEPS
        base: Walk | None = walk
        while base and self._steps > 0:
            choices, path = base.choices, base.path
            base = None
            for index, others in choices:
                for other in others:
                    variant = Walk(self, state, [*path[:index], other])
                    if variant.is_complete() and (candidate := self._found(variant.path)).fits(found.n_tokens - 1):
                        found, base = candidate, variant
                        if found.fits(limit):
                            return found
        return found

    def _found(self, path: Steps) -> Found:
        return Found(path, self.vocabulary.tokens_of(path))

    def _completes(self, state: "LLMatcher", path: Steps) -> bool:
        """Return whether a path completes the answer."""
        matcher = state.deep_copy()
        return (not path or matcher.consume_tokens(path)) and matcher.is_accepting()

    def spend(self, steps: int) -> bool:
        """Count steps of walks, and return whether the search may go on."""
        self._steps -= steps
        self._steps_of_answer -= steps
        return min(self._steps, self._steps_of_answer) > 0 and process_time() < self._deadline

    def allowed(self, matcher: "LLMatcher") -> tuple[bytes, Steps]:
        """Return the mask of the bytes that may come next, and the control tokens; b"" if no byte may."""
        bits = matcher.compute_bitmask()
        first = self.vocabulary.first // 8
        mask = bits[first : first + 32]
        return mask if any(mask) else b"", [id for id in self._controls if bits[id // 8] >> id % 8 & 1]


def examples(patterns: Sequence[str], vocabulary: ByteVocabulary) -> list[bytes]:
    """Return short texts that match these regular expressions, at least up to characters that JSON escapes."""
    from llguidance import LLMatcher

    found = []
    for pattern in patterns:
        text = Closings(LLMatcher.grammar_from_regex(pattern), vocabulary).now(MAX_STEPS).path or []
        example = bytes(step - vocabulary.first for step in text)
        found.append(ESCAPED.sub(b"-", example))
    return list(filter(None, found))
