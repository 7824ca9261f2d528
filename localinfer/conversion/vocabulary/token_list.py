"""The token list of a vocabulary under construction, while the files of a checkpoint are read one after another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from localinfer.gguf.source import Field
from localinfer.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED

ADDED_SCORE, PADDING_SCORE = -1000.0, -10_000.0
SPECIAL_AFFIXES = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))  # prefix and suffix
SPECIAL_TEXTS = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")


class Token(NamedTuple):
    """A token. `type` is a value of tokenizer.ggml.token_type."""

    text: str
    type: int = NORMAL
    score: float = 0.0


@dataclass
class TokenList:
    """A vocabulary. `model` and `pre` are GGUF's names of the tokenizer model and pre-tokenizer; ids may have gaps."""

    model: str
    pre: str
    by_id: dict[int, Token]
    merges: Sequence[str] = ()  # for BPE with merges
    adds_space: bool | None = None  # whether a space is put in front of a text; None: unknown
    extra_fields: Mapping[str, Field] = field(default_factory=dict)  # keys of this tokenizer model only
    special_ids: Mapping[str, int] = field(
        default_factory=dict
    )  # special ids that override other files: see special_tokens.py

    def add(self, id: int, text: str, *, special: bool) -> None:
        """Add a token that was added after training. The unknown token and bytes keep their types."""
        old = self.by_id.get(id)
        if special or looks_special(text):
            kind = old.type if old and old.type in (UNKNOWN, BYTE) else CONTROL
            self.by_id[id] = Token(text, kind, ADDED_SCORE)
        else:
            self.by_id[id] = user_defined(text, ADDED_SCORE)

    def ids_by_text(self) -> dict[str, int]:
        """Return the id of each text."""
        return {token.text: id for id, token in self.by_id.items()}

    def padded(self, n_vocab: int) -> list[Token]:
        """Return one token per embedding row; missing ids become unused tokens."""
        return [self.by_id.get(id) or Token(f"[PAD{id}]", UNUSED, PADDING_SCORE) for id in range(n_vocab)]


def user_defined(text: str, score: float) -> Token:
    """Return a user-defined token, which is matched before normalization, so its spaces are plain spaces."""
    return Token(text.replace("▁", " "), USER_DEFINED, score)


def looks_special(text: str) -> bool:
    """Return whether a token's text looks like a control token; many checkpoints do not flag theirs."""
    return text in SPECIAL_TEXTS or any(text.startswith(begin) and text.endswith(end) for begin, end in SPECIAL_AFFIXES)
