"""The result of a run: what `Model.generate` and `Model.chat` return, and the stream of pieces that becomes one."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from localinfer.generation.pieces import NO_TOKEN, Alternative, FinishReason, Kind, Piece, Stats, ToolCall


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural logarithm of a token's probability, and the most probable tokens at its position, best first."""

    text: str
    id: int
    logprob: float
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class GenerationResult:
    """The output of one run.

    `text` is the answer without reasoning and without tool calls; `tokens` are the ids of everything that the model
    generated. `finish_reason` is that of `Stats`, or "tool_calls" if the model called tools and the answer was not
    closed at a limit. `logprobs` has one entry per token if the option `logprobs` was set, otherwise it is empty.
    `tokens[answer_start:]` are the tokens of the answer; those before are the reasoning and its tags.
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason | Literal["tool_calls"]
    stats: Stats
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    answer_start: int = 0

    @classmethod
    def from_pieces(cls, pieces: Sequence[Piece], stats: Stats) -> Self:
        """Return the result of a run that yielded these pieces."""
        calls = tuple(call for piece in pieces for call in piece.calls)
        tokens = [piece for piece in pieces if piece.id != NO_TOKEN]
        return cls(
            text=text_of(pieces, "text"),
            tokens=[piece.id for piece in tokens],
            finish_reason="tool_calls" if calls and not stats.closed_at_limit else stats.finish_reason,
            stats=stats,
            reasoning=text_of(pieces, "reasoning"),
            tool_calls=calls,
            logprobs=tuple(
                TokenLogprob(piece.text, piece.id, piece.logprob, piece.top)
                for piece in pieces
                if piece.logprob is not None
            ),
            answer_start=answer_start(tokens),
        )

    def as_message(self) -> dict[str, object]:
        """Return the assistant message that continues a conversation.

        It contains the token ids, so that the next prompt repeats exactly what the KV cache holds: `ids` are those of
        the answer, `reasoning_ids` those of the reasoning before it.
        """
        message: dict[str, object] = {"role": "assistant", "content": self.text}
        if ids := self.tokens[self.answer_start :]:
            message["ids"] = ids
        if reasoning_ids := self.tokens[: self.answer_start]:
            message["reasoning_ids"] = reasoning_ids
        if reasoning := self.reasoning.strip():
            message["reasoning_content"] = reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.as_entry() for call in self.tool_calls]
        return message

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        seconds = self.stats.generate_seconds
        speed = f", {self.stats.generated_tokens / seconds:.1f} tokens/s" if seconds else ""
        return f"GenerationResult({text!r}, {len(self.tokens)} tokens, {self.finish_reason}{speed})"

    def _repr_markdown_(self) -> str:
        """Return the text for a notebook, which renders it as Markdown."""
        return self.text


def text_of(pieces: Iterable[Piece], kind: Kind) -> str:
    return "".join(piece.text for piece in pieces if piece.kind == kind)


def answer_start(pieces: Sequence[Piece]) -> int:
    """Return the index of the first piece after the reasoning; the number of pieces if the reasoning interrupts the
    answer.
    """
    start = max((index + 1 for index, piece in enumerate(pieces) if piece.kind != "text"), default=0)
    return start if text_of(pieces[:start], "text") == "" else len(pieces)


class GenerationStream(Iterator[Piece]):
    """An iterator of the pieces of a run; `stats` is updated while the run generates. `prompt_ids` are the token ids of
    its prompt.

    Closing the stream, or leaving a `with` block, ends the run and calls `on_close`: nothing else releases what a run
    holds that was never started.
    """

    def __init__(
        self, pieces: Iterator[Piece], stats: Stats, on_close: Callable[[], None] = lambda: None,
        prompt_ids: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.stats, self.prompt_ids = stats, prompt_ids
        self._pieces, self._on_close = pieces, on_close

    def __next__(self) -> Piece:
        return next(self._pieces)

    def result(self) -> GenerationResult:
        """Generate the remaining pieces, and return them as a result."""
        return GenerationResult.from_pieces(list(self), self.stats)

    def close(self) -> None:
        """End the run."""
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()
        self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
