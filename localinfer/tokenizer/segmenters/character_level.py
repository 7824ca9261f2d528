"""BPE that merges characters instead of bytes: Gemma 4's, and some that are made like it.

As in SentencePiece, "▁" stands for a space, and a character that has no token is written as its bytes, <0xE2> ...
"""

import re
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from localinfer.files.gguf import GGUF
from localinfer.tokenizer.segmenters.byte_tokens import NAMES
from localinfer.tokenizer.segmenters.merging import Merging
from localinfer.tokenizer.unicode import WHITE_SPACE, simple_lower
from localinfer.tokenizer.vocabulary import BYTE, read_frame, read_vocabulary

if TYPE_CHECKING:
    from tokenizers import pre_tokenizers

SPACE = "▁"
NEVER = "(?!)"
UNKNOWN = "\0\0"  # no token has a NUL inside


class Spelling(NamedTuple):
    """How a text is written before it merges, and where it is cut.

    `word`: an expression; what lies between two matches is left out. `whole_breaks`: a run of line breaks that is
    a token is not merged. `add_bos`: whatever the file says. `lowers`: into small letters, if the file wants it.
    """

    word: str = r"\n+|[^\n]+"
    escapes_spaces: bool = True
    whole_breaks: bool = False
    add_bos: bool = False
    lowers: bool = False


GEMMA4 = Spelling(whole_breaks=True, add_bos=True)
SPELLINGS = {  # by tokenizer.ggml.pre
    "gemma4": GEMMA4,
    "granite-embed-multi-311m": GEMMA4,
    "sarvam-moe": Spelling(),
    "whitespace": Spelling(word=rf"[^{WHITE_SPACE}]+", escapes_spaces=False, lowers=True),
}


class CharacterBPE:
    """Raises LocalInferError, naming the key, where the file's vocabulary cannot work."""

    adds_space = False

    def __init__(self, f: GGUF, spelling: Spelling) -> None:
        self.vocabulary = read_vocabulary(f)
        self.frame = read_frame(f, self.vocabulary)
        if spelling.add_bos and self.vocabulary.bos is not None:
            self.frame = self.frame._replace(first=[self.vocabulary.bos])
        self._spelling = spelling
        self._lowers = spelling.lowers and f.get("tokenizer.ggml.normalizer.lowercase", bool, False)
        self._merge = Merging(
            f,
            self.vocabulary,
            byte_token="<0x{:02X}>".format,
            without_token=lambda _: [UNKNOWN],
            unk_token=UNKNOWN,
            byte_fallback=True,
        )
        self._merge.use(_words(spelling))
        self._whole = self._whole_breaks() if spelling.whole_breaks else {}
        runs = "|".join(rf"(?<!\n){run}(?!\n)" for run in self._whole)
        self._cut = re.compile(f"({runs})" if runs else NEVER)

    def encode(self, text: str, *, after_special: bool) -> list[int]:  # noqa: ARG002 (no space is ever added)
        """The ids of a text without special tokens. What has neither a token nor one for its bytes is left out."""
        if self._lowers:
            text = "".join(map(simple_lower, text))
        if self._spelling.escapes_spaces:
            text = text.replace(" ", SPACE)
        parts = self._cut.split(text)
        merged = zip(parts, self._merge(parts), strict=True)
        return list(chain.from_iterable(self._whole.get(part, ids) for part, ids in merged))

    def piece(self, id: int) -> bytes:
        """The bytes that a normal token or a byte token stands for."""
        token = self.vocabulary.tokens[id]
        if self.vocabulary.types[id] == BYTE:
            return NAMES.get(token, token)
        return token.replace(SPACE.encode(), b" ") if self._spelling.escapes_spaces else token

    def _whole_breaks(self) -> dict[str, list[int]]:
        """The runs of line breaks that are a token, but would not become it by merging."""
        tokens = {text: [id] for text, id in self._merge.ids.items() if text[0] == "\n" and not text.strip("\n")}
        merged = zip(tokens, self._merge(list(tokens)), strict=True)
        return {run: tokens[run] for run, ids in merged if ids != tokens[run]}


def _words(spelling: Spelling) -> "pre_tokenizers.PreTokenizer":
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(spelling.word), "removed", invert=True)
