"""What a generation yields, piece by piece, and what holds a piece back until its text is certain.

Knows texts only: neither models nor how tokens become texts.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

FinishReason = Literal["stop", "length", "context", "interrupted"]
Kind = Literal["text", "thought", "tag"]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that might have come, and the natural logarithm of its probability."""

    text: str
    id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool. Its `id` is the model's where it writes one; otherwise calls are numbered."""

    name: str
    arguments: dict[str, Any]
    id: str = ""

    def as_entry(self) -> dict[str, Any]:
        """As it stands in `tool_calls` of a message; OpenAI has the arguments as a text in JSON."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class Piece:
    """A generated token and the text that it adds, "" in the middle of a character.

    The texts of all pieces together are what the model has written. The answer is those of kind "text"; a model that
    reasons first writes pieces of kind "thought", between pieces of kind "tag".

    A model that was shown tools may call some: `calls` are those that this token completes. What the model writes to
    call a tool is in no piece's text.

    With the option logprobs, `logprob` is the natural logarithm of the token's probability, `entropy` that of all
    tokens' probabilities in nats, and `top` has the most probable tokens, the best first. All of these are the model's
    own, before any sampler.
    """

    text: str
    id: int
    kind: Kind = "text"
    logprob: float | None = None
    entropy: float | None = None
    top: tuple[Alternative, ...] = ()
    calls: tuple[Call, ...] = ()


@dataclass(slots=True)
class Stats:
    """How a run went; it is brought up to date while the run goes on.

    `finish_reason`: "stop" for an end-of-generation token or a stop text, "length" for n_predict, "context" for
    a full context, and "interrupted" until one of these comes.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0  # of the prompt: they were in the cache
    prompt_seconds: float = 0.0
    generated_tokens: int = 0
    generate_seconds: float = 0.0  # without the time that the caller takes between two pieces
    drafted_tokens: int = 0  # guesses that the model has judged
    accepted_tokens: int = 0  # guesses that were right
    gain: float = 1.0  # how many times as fast the run was as one without guesses would have been
    finish_reason: FinishReason = "interrupted"
    seed: int = 0


class Outlet:
    """Holds pieces back until their text is certain.

    The end of a text is uncertain while it could be the beginning of one of the texts `stops`, which are no part of the
    answer, or while a character is unfinished.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stopped = False
        self._stops = stops
        self._held: list[Piece] = []

    def push(self, piece: Piece, *, unfinished: bool) -> list[Piece]:
        """Take one more piece; returns those that are certain now. When a stop text is complete, these are the last
        ones, cut off before it, and `stopped` is set."""
        self._held.append(piece)
        text = "".join(held.text for held in self._held)
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            return self._cut(min(found))
        certain = self._certain(len(text) - self._doubtful(text))
        if unfinished and not self._held:
            self._held = [certain.pop()]
        return certain

    def flush(self, rest: str = "") -> list[Piece]:
        """All pieces that are held back. `rest`, what is left of an unfinished character, is appended to the last."""
        *pieces, last = self._held or [Piece("", 0)]
        return [*pieces, replace(last, text=last.text + rest)] if self._held else []

    def _certain(self, end: int) -> list[Piece]:
        """The pieces whose text ends within the first `end` characters that are held."""
        n = bisect_right(list(accumulate(len(piece.text) for piece in self._held)), end)
        certain, self._held = self._held[:n], self._held[n:]
        return certain

    def _cut(self, end: int) -> list[Piece]:
        """The pieces of the first `end` characters, the last one cut; what comes after them is forgotten."""
        starts = accumulate((len(piece.text) for piece in self._held), initial=0)
        before = [(piece, start) for piece, start in zip(self._held, starts, strict=False) if start < end]
        self._held = []
        return [replace(piece, text=piece.text[: end - start]) for piece, start in before]

    def _doubtful(self, text: str) -> int:
        """How many characters at the end of `text` a stop text could begin with."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        sizes = range(min(longest, len(text)), 0, -1)
        return next((n for n in sizes if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)
