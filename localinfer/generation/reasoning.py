"""Detection of reasoning content by the special tokens around it.

If a vocabulary has no single tokens for the tags, there is no reasoning: a tag that is written as text may be meant
literally.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from localinfer.generation.pieces import Kind, Piece
from localinfer.tokenizer import Tokenizer

TAGS = {
    "<think>": "</think>",  # Qwen 3, DeepSeek R1, SmolLM 3, Phi 4, GLM 4.5 and most others
    "[THINK]": "[/THINK]",  # Magistral, Mistral Small 4
    "<thought>": "</thought>",  # EXAONE Deep
    "<seed:think>": "</seed:think>",  # Seed OSS
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command A
}


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
        return next((id for id in reversed(ids) if not self._is_blank(id)), -1)

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
    ids = {}
    for tags in TAGS.items():
        match [tokenizer.split(tag) for tag in tags]:
            case [[int(opening)], [int(closing)]]:
                ids[opening] = closing
    return ids
