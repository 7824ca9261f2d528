"""What of an answer is thought, told by the tokens that stand for the tags around it.

A vocabulary that spells tags with several tokens has no thoughts: as a text, a tag may be meant as one.
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


class Thoughts:
    """Follows one run, token by token. `kind` is that of the last one.

    Thoughts begin with a tag at the beginning of the answer, or at the end of the prompt, where some templates put
    it. Behind `budget` tokens of them only the closing tag may come; -1 sets no limit.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], budget: int = -1) -> None:
        self.kind: Kind = "text"
        self._tokenizer = tokenizer
        self._budget = budget
        self._tags = tag_ids(tokenizer)
        self._closing = self._tags.get(self._last_word(prompt)) if self._tags else None
        self._begun = False  # the answer itself

    @property
    def forced(self) -> int | None:
        """The closing tag, where no more thoughts may come; otherwise any token may."""
        return self._closing if self._budget == 0 else None

    def follow(self, id: int) -> None:
        """The next token."""
        if self._closing is not None:
            self._budget -= self._budget > 0
            self.kind = "tag" if id == self._closing else "thought"
            self._closing = None if id == self._closing else self._closing
        elif self._begun or not self._tags:
            self.kind = "text"
        elif id in self._tags:
            self.kind, self._closing = "tag", self._tags[id]
        elif self.kind == "tag" and self._is_blank(id):
            pass  # the space behind the closing tag is no part of the answer
        else:
            self.kind, self._begun = "text", not self._is_blank(id)

    def _last_word(self, ids: Sequence[int]) -> int:
        return next((id for id in reversed(ids) if not self._is_blank(id)), -1)

    def _is_blank(self, id: int) -> bool:
        return self._tokenizer.token_bytes(id).isspace()


def as_text(pieces: Iterator[Piece], tokenizer: Tokenizer) -> Iterator[Piece]:
    """The same pieces, with thoughts and their tags as parts of the answer."""
    with contextlib.closing(pieces):  # type: ignore[type-var]  # a generator, which holds a run
        for piece in pieces:
            tag = tokenizer.token_bytes(piece.id, special=True).decode() if piece.kind == "tag" else ""
            yield replace(piece, kind="text", text=piece.text or tag)


def tag_ids(tokenizer: Tokenizer) -> dict[int, int]:
    """Opening tag -> closing tag, of those that are one token each."""
    ids = {}
    for tags in TAGS.items():
        match [tokenizer.split(tag) for tag in tags]:
            case [[int(opening)], [int(closing)]]:
                ids[opening] = closing
    return ids
