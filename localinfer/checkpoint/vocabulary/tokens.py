"""A vocabulary in the making: tokens by id, while the files of a checkpoint are read one after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from localinfer.files.source import Field
from localinfer.tokenizer.vocabulary import CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED

ADDED_SCORE, PADDING_SCORE = -1000.0, -10_000.0
LOOK_SPECIAL = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))  # beginning and end
ARE_SPECIAL = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")


class Token(NamedTuple):
    """`type` is a number of tokenizer.ggml.token_type."""

    text: str
    type: int = NORMAL
    score: float = 0.0


@dataclass
class Tokens:
    """`model` and `pre` are GGUF's names of the kind of tokenizer and of how it cuts words; `by_id` may have holes."""

    model: str
    pre: str
    by_id: dict[int, Token]
    merges: Sequence[str] = ()  # of byte-level BPE
    adds_space: bool | None = None  # whether a text begins with a space; None: nothing is said about it
    more: Mapping[str, Field] = field(default_factory=dict)  # keys of this kind of tokenizer alone
    special: Mapping[str, int] = field(default_factory=dict)  # ids that it has whatever other files say: see special.py

    def add(self, id: int, text: str, *, special: bool) -> None:
        """A token that was added after training. The unknown one, which is listed too, stays what it is."""
        old = self.by_id.get(id)
        if special or looks_special(text):
            kind = UNKNOWN if old and old.type == UNKNOWN else CONTROL
            self.by_id[id] = Token(text, kind, ADDED_SCORE)
        else:
            self.by_id[id] = user_defined(text, ADDED_SCORE)

    def ids(self) -> dict[str, int]:
        """The ids of all texts."""
        return {token.text: id for id, token in self.by_id.items()}

    def padded(self, n_vocab: int) -> list[Token]:
        """As many tokens as the embedding has rows; where there is none, one that is never used."""
        return [self.by_id.get(id) or Token(f"[PAD{id}]", UNUSED, PADDING_SCORE) for id in range(n_vocab)]


def user_defined(text: str, score: float) -> Token:
    """A token that is found in texts before anything else happens to them: its spaces are spaces still."""
    return Token(text.replace("▁", " "), USER_DEFINED, score)


def looks_special(text: str) -> bool:
    """Whether a token is a mark by its looks: many checkpoints do not say so of theirs."""
    return text in ARE_SPECIAL or any(text.startswith(begin) and text.endswith(end) for begin, end in LOOK_SPECIAL)
