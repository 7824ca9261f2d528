"""Character-level BPE: Gemma 4's tokenizer and similar ones.

As in SentencePiece, "▁" stands for a space, and a character without a token is encoded as byte tokens <0xE2> ...
"""

import re
from typing import TYPE_CHECKING, NamedTuple

from localinfer.gguf.reader import GGUF
from localinfer.kernels.bpe_signatures import LINE_BREAKS, NOTHING
from localinfer.tokenizer.pretokenizers import BETWEEN_LINES
from localinfer.tokenizer.segmenters.bpe_merger import BPEMerger
from localinfer.tokenizer.segmenters.byte_tokens import NAMES
from localinfer.tokenizer.unicode import WHITE_SPACE, simple_lower
from localinfer.tokenizer.vocabulary import BYTE, read_bos_eos, read_vocabulary
from localinfer.tokenizer.word_splitter import cut

if TYPE_CHECKING:
    from tokenizers import pre_tokenizers

SPACE = "▁"
BOUNDARY = re.compile(BETWEEN_LINES)


class CharacterBPEOptions(NamedTuple):
    """How text is normalized and split before merging.

    `pattern`: a regular expression; text between matches is dropped. `keeps_line_breaks`: a run of line breaks that is
    a token is not merged. `add_bos`: always add BOS, regardless of the file. `lowers`: convert to lower case if the
    file requests it.
    """

    pattern: str = r"\n+|[^\n]+"
    escapes_spaces: bool = True
    keeps_line_breaks: bool = False
    add_bos: bool = False
    lowers: bool = False


GEMMA4 = CharacterBPEOptions(keeps_line_breaks=True, add_bos=True)
OPTIONS = {  # by tokenizer.ggml.pre
    "gemma4": GEMMA4,
    "granite-embed-multi-311m": GEMMA4,
    "sarvam-moe": CharacterBPEOptions(),
    "whitespace": CharacterBPEOptions(pattern=rf"[^{WHITE_SPACE}]+", escapes_spaces=False, lowers=True),
}


class CharacterBPE:
    """Character-level BPE. Raises LocalInferError, naming the key, if the file's vocabulary is unusable."""

    adds_space = False

    def __init__(self, f: GGUF, options: CharacterBPEOptions) -> None:
        self.vocabulary = read_vocabulary(f)
        self.bos_eos = read_bos_eos(f, self.vocabulary)
        if options.add_bos and self.vocabulary.bos is not None:
            self.bos_eos = self.bos_eos._replace(first=[self.vocabulary.bos])
        self._options = options
        self._lowers = options.lowers and f.get("tokenizer.ggml.normalizer.lowercase", bool, False)
        self._merge = BPEMerger(
            f,
            self.vocabulary,
            _pre_tokenizer(options),
            [f"<0x{byte:02X}>" for byte in range(256)],
            unmerged=LINE_BREAKS if options.keeps_line_breaks else NOTHING,
        )

    def encode(self, text: str, *, after_special: bool) -> list[int]:  # noqa: ARG002 (no space is ever added)
        """Return the ids of a text without special tokens. Characters without a token and byte tokens are dropped."""
        if self._lowers:
            text = "".join(map(simple_lower, text))
        if self._options.escapes_spaces:
            text = text.replace(" ", SPACE)
        return self._merge(cut(text, BOUNDARY))

    def piece(self, id: int) -> bytes:
        """Return the bytes of a normal token or a byte token."""
        token = self.vocabulary.tokens[id]
        if self.vocabulary.types[id] == BYTE:
            return NAMES.get(token, token)
        return token.replace(SPACE.encode(), b" ") if self._options.escapes_spaces else token


def _pre_tokenizer(options: CharacterBPEOptions) -> "pre_tokenizers.PreTokenizer":
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(options.pattern), "removed", invert=True)
