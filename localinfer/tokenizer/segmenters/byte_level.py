"""Byte-level BPE, `tokenizer.ggml.model` = "gpt2": regular expressions cut out words, whose bytes are merged.

Such a vocabulary spells bytes as characters: the printable ones of Latin-1 stand for themselves, the others
are moved up to U+0100 and beyond, so that a space is written as Ġ.
"""

from itertools import chain
from typing import TYPE_CHECKING

from localinfer.files.gguf import GGUF
from localinfer.tokenizer.pretokenizers import PreTokenizer
from localinfer.tokenizer.segmenters.merging import Merging
from localinfer.tokenizer.unicode import pinned
from localinfer.tokenizer.vocabulary import read_frame, read_vocabulary

if TYPE_CHECKING:
    from tokenizers import pre_tokenizers

PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
MOVED = [byte for byte in range(256) if byte not in PRINTABLE]
BYTE_OF = {chr(byte): bytes([byte]) for byte in PRINTABLE}
BYTE_OF |= {chr(0x100 + place): bytes([byte]) for place, byte in enumerate(MOVED)}
assert len(BYTE_OF) == 256


class ByteLevelBPE:
    """Raises LocalInferError, naming the key, where the file's vocabulary cannot work."""

    adds_space = False

    def __init__(self, f: GGUF, pre: PreTokenizer) -> None:
        self.vocabulary = read_vocabulary(f)
        self.frame = read_frame(f, self.vocabulary, add_bos=pre.add_bos)
        self._before = pre.before
        self._merge = Merging(
            f,
            self.vocabulary,
            byte_token=lambda byte: chr(byte) if byte < 128 else "",
            without_token=lambda ids: [char for char in BYTE_OF if char not in ids],
            ignore_merges=pre.ignore_merges,
        )
        self._merge.use(_words(pre))

    def encode(self, text: str, *, after_special: bool) -> list[int]:  # noqa: ARG002 (no space is ever added)
        """The ids of a text without special tokens. A byte that the vocabulary does not have is left out."""
        pieces = self._before(text) if self._before else [text]
        return list(chain.from_iterable(self._merge(pieces)))

    def piece(self, id: int) -> bytes:
        """The bytes that a normal token stands for; a character that spells no byte stands for itself."""
        text = self.vocabulary.tokens[id].decode("utf-8", "replace")
        return b"".join(BYTE_OF.get(char) or char.encode() for char in text)


def _words(pre: PreTokenizer) -> "pre_tokenizers.PreTokenizer":
    from tokenizers import Regex, pre_tokenizers

    cuts = [pre_tokenizers.Split(Regex(pinned(pattern)), "isolated") for pattern in pre.patterns]
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*cuts, spelling])
