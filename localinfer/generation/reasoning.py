"""Detection of reasoning content by the tags around it.

`ReasoningTracker` follows the token ids of any run, for tags that are single tokens of the vocabulary. The answers of
chats are parsed as text instead (tool_calls/answer_parser.py), with the tags that the chat template determines.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from localinfer.generation.pieces import Kind, Piece
from localinfer.tokenizer import Tokenizer


class ReasoningTags(NamedTuple):
    """The tags around reasoning. `label` follows the opening tag and is part of it.

    Reasoning begins at the beginning of an answer; with `repeats`, also within it.
    """

    opening: str
    closing: str
    label: str = ""
    repeats: bool = False

    def with_suffix(self, suffix: str) -> "ReasoningTags":
        """Return the tags with this suffix instead of {}."""
        return self._replace(opening=self.opening.replace("{}", suffix), closing=self.closing.replace("{}", suffix))

    def are_open(self, prompt: str) -> bool:
        """Return whether a prompt ends with the opening tag, as some chat templates write it."""
        return prompt.rstrip().endswith((self.opening, self.opening + self.label))


THINK = ReasoningTags("<think>", "</think>")  # Qwen 3, DeepSeek R1, SmolLM 3, Phi 4, GLM 4.5 and most others
TAGS = (
    ReasoningTags("[THINK]", "[/THINK]"),  # Magistral, Mistral Small 4
    ReasoningTags("<thought>", "</thought>"),  # EXAONE Deep
    ReasoningTags("<seed:think>", "</seed:think>"),  # Seed OSS
    ReasoningTags("<mm:think>", "</mm:think>"),  # MiniMax M3
    ReasoningTags("<think:opensource>", "</think:opensource>"),  # Hunyuan 3 and 4
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A, Command R7B
    ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ReasoningTags("<|channel>", "<channel|>", label="thought", repeats=True),  # Gemma 4
    ReasoningTags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),  # Apriel
    THINK,
)


class ReasoningTracker:
    """A tracker of one run's tokens. `kind` is the kind of the last token.

    Reasoning begins with a tag at the beginning of the answer, or at the end of the prompt, where some chat templates
    put it. After `budget` reasoning tokens only the closing tag is allowed; -1 means no limit.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], budget: int = -1) -> None:
        self.kind: Kind = "text"
        self._tokenizer = tokenizer
        self._budget = budget
        self._tags = reasoning_tag_ids(tokenizer)
        self._closing = self._tags.get(self._last_visible_token(prompt)) if self._tags else None
        self._answer_begun = False  # whether there was any answer text

    @property
    def forced(self) -> int | None:
        """The closing tag's id if the reasoning budget is used up, otherwise None."""
        return self._closing if self._budget == 0 else None

    def accept(self, id: int) -> None:
        """Process the next token."""
        if self._closing is not None:
            self._budget -= self._budget > 0
            self.kind = "tag" if id == self._closing else "reasoning"
            self._closing = None if id == self._closing else self._closing
        elif self._answer_begun or not self._tags:
            self.kind = "text"
        elif id in self._tags:
            self.kind, self._closing = "tag", self._tags[id]
        elif self.kind == "tag" and self._is_blank(id):
            pass  # white space after the closing tag is not part of the answer
        else:
            self.kind, self._answer_begun = "text", not self._is_blank(id)

    def _last_visible_token(self, ids: Sequence[int]) -> int:
        return next((id for id in reversed(ids) if id < 0 or not self._is_blank(id)), -1)

    def _is_blank(self, id: int) -> bool:
        return self._tokenizer.token_bytes(id).isspace()


def merge_reasoning(pieces: Iterator[Piece], tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield the same pieces with reasoning and its tags as answer text."""
    with contextlib.closing(pieces):  # type: ignore[type-var]  # a generator that holds a run
        for piece in pieces:
            tag = tokenizer.token_bytes(piece.id, special=True).decode() if piece.kind == "tag" else ""
            yield replace(piece, kind="text", text=piece.text or tag)


def reasoning_tag_ids(tokenizer: Tokenizer) -> dict[int, int]:
    """Return the closing tag's id for each opening tag's id, for the tags that are single tokens."""
    return dict(ids for tags in TAGS if (ids := single_tokens(tags, tokenizer)))


def single_tokens(tags: ReasoningTags, tokenizer: Tokenizer) -> tuple[int, int] | None:
    """Return the ids of the tags if each is one token, otherwise None."""
    match [tokenizer.split(tag) for tag in (tags.opening, tags.closing)]:
        case [[int(opening)], [int(closing)]]:
            return opening, closing
    return None


def find_tags(template: str, tokenizer: Tokenizer) -> ReasoningTags | None:
    """Return the tags that a chat template contains, or else those that are single tokens of the vocabulary."""
    in_template = (tags for tags in TAGS if tags.opening in template or tags.closing in template)
    return next(in_template, None) or next((tags for tags in TAGS if single_tokens(tags, tokenizer)), None)
