"""The pieces that a run yields, and the filter that holds pieces back until their text is certain.

This module handles texts only and depends on neither models nor tokenizers.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

FinishReason = Literal["stop", "length", "context", "interrupted"]
Kind = Literal["text", "reasoning", "tag"]
NO_TOKEN = -1  # the id of a piece without a token, which has a part of the text of the token before it


@dataclass(frozen=True, slots=True)
class Alternative:
    """An alternative token, and the natural logarithm of its probability."""

    text: str
    id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call. `id` is the model's own if it writes one; otherwise calls are numbered."""

    name: str
    arguments: dict[str, object]
    id: str = ""

    def as_entry(self) -> dict[str, object]:
        """Return the call as an entry of a message's `tool_calls`. OpenAI's API has the arguments as a JSON string
        instead."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """A part of the JSON text of a call's arguments. `index` counts the calls of an answer."""

    index: int
    name: str
    text: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A generated token and the text that it adds, which is "" within an incomplete character.

    A token that ends the reasoning and begins the answer has two pieces; the second one has the id NO_TOKEN.

    The concatenated texts of all pieces are the model's output. Pieces of kind "text" are the answer; a reasoning model
    first writes pieces of kind "reasoning", enclosed by pieces of kind "tag".

    `calls` are the tool calls that this token completes. Their source text is not part of any piece's text. If the
    arguments of calls are streamed, `call_parts` are the parts of their JSON text that this token adds.

    With the option logprobs, `logprob` is the natural logarithm of the token's probability, `entropy` the entropy of
    the distribution in nats, and `top` lists the most probable tokens, best first. All refer to the model's own
    distribution, before any sampler.
    """

    text: str
    id: int
    kind: Kind = "text"
    logprob: float | None = None
    entropy: float | None = None
    top: tuple[Alternative, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    call_parts: tuple[ToolCallPart, ...] = ()


@dataclass(slots=True)
class Stats:
    """Statistics of a run, updated while it generates.

    `finish_reason` is "stop" for an end-of-generation token or a stop string, "length" for n_predict, "context" for a
    full context, and "interrupted" until one of these occurs. `stop_string` is the stop string, if one ended the text.
    `closed_at_limit` is the limit of tokens, by n_predict or the context, if a constrained answer was closed there: its
    last tokens are not the model's, they complete it. The reason is then "length".
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0  # prompt tokens that were cached
    prompt_seconds: float = 0.0
    generated_tokens: int = 0
    generate_seconds: float = 0.0  # excludes the caller's time between pieces
    drafts: int = 0  # lists of draft tokens that the model has verified
    drafted_tokens: int = 0  # draft tokens that the model has verified
    accepted_tokens: int = 0  # draft tokens that were accepted
    diffusion_steps: int = 0  # evaluations of the whole text by a diffusion language model
    speedup: float = 1.0  # estimated speedup by speculative decoding
    finish_reason: FinishReason = "interrupted"
    closed_at_limit: int = 0
    stop_string: str = ""  # the one that ended the text
    seed: int = 0


class StopStringFilter:
    """A filter that holds pieces back until their text is certain.

    The end of the text is uncertain while it could begin one of the stop strings, which are not part of the answer, or
    while a character is incomplete.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.found = ""  # the stop string that the text contained
        self._stops = stops
        self._held: list[Piece] = []

    @property
    def is_stopped(self) -> bool:
        return bool(self.found)

    def push(self, piece: Piece, *, is_incomplete: bool) -> list[Piece]:
        """Add a piece and return the pieces that are certain now.

        When a stop string is complete, it is `found`, and the returned pieces are the last ones, cut off before it.
        """
        self._held.append(piece)
        text = "".join(held_piece.text for held_piece in self._held)
        positions = {stop: position for stop in self._stops if (position := text.find(stop)) >= 0}
        if positions:
            self.found = min(positions, key=positions.__getitem__)
            return self._truncate(positions[self.found])
        certain = self._release(len(text) - self._n_ambiguous(text))
        if is_incomplete and not self._held:
            self._held = [certain.pop()]
        return certain

    def flush(self, suffix: str = "") -> list[Piece]:
        """Return all held pieces. `suffix`, the text of an incomplete character at the end, is appended to the last
        one.
        """
        *pieces, last = self._held or [Piece("", 0)]
        return [*pieces, replace(last, text=last.text + suffix)] if self._held else []

    def _release(self, end: int) -> list[Piece]:
        """Return the pieces that end within the first `end` held characters."""
        n = bisect_right(list(accumulate(len(piece.text) for piece in self._held)), end)
        certain, self._held = self._held[:n], self._held[n:]
        return certain

    def _truncate(self, end: int) -> list[Piece]:
        """Return the pieces of the first `end` characters, the last one cut off, and drop everything after them."""
        starts = accumulate((len(piece.text) for piece in self._held), initial=0)
        selected = [(piece, start) for piece, start in zip(self._held, starts, strict=False) if start < end]
        self._held = []
        return [replace(piece, text=piece.text[: end - start]) for piece, start in selected]

    def _n_ambiguous(self, text: str) -> int:
        """Return the number of characters at the end of `text` that a stop string could begin with."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        sizes = range(min(longest, len(text)), 0, -1)
        return next((n for n in sizes if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)
