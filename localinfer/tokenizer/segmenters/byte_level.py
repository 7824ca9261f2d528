"""Byte-level BPE, `tokenizer.ggml.model` = "gpt2": regular expressions split words, whose bytes are merged.

The vocabulary writes bytes as characters: printable Latin-1 bytes as themselves, the others shifted to U+0100 and
above, so that a space is written as Ġ.
"""

import re
from itertools import chain
from typing import TYPE_CHECKING

from localinfer.gguf.reader import GGUF
from localinfer.kernels.bpe_signatures import NOTHING, WORDS
from localinfer.tokenizer.pretokenizers import PreTokenizer
from localinfer.tokenizer.segmenters.bpe_merger import BPEMerger
from localinfer.tokenizer.unicode import pin_unicode_version
from localinfer.tokenizer.vocabulary import read_bos_eos, read_vocabulary
from localinfer.tokenizer.word_splitter import cut

if TYPE_CHECKING:
    from tokenizers import pre_tokenizers

PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
MOVED = [byte for byte in range(256) if byte not in PRINTABLE]
BYTE_OF = {chr(byte): bytes([byte]) for byte in PRINTABLE}
BYTE_OF |= {chr(0x100 + index): bytes([byte]) for index, byte in enumerate(MOVED)}
assert len(BYTE_OF) == 256


class ByteLevelBPE:
    """Byte-level BPE. Raises LocalInferError, naming the key, if the file's vocabulary is unusable."""

    adds_space = False

    def __init__(self, f: GGUF, pre: PreTokenizer) -> None:
        self.vocabulary = read_vocabulary(f)
        self.bos_eos = read_bos_eos(f, self.vocabulary, add_bos=pre.add_bos)
        self._split, self._boundary = pre.split, re.compile(pre.boundary)
        self._merge = BPEMerger(
            f,
            self.vocabulary,
            _pre_tokenizer(pre),
            [chr(byte) if byte < 128 else "" for byte in range(256)],
            alphabet=sorted(BYTE_OF, key=BYTE_OF.__getitem__),
            unmerged=WORDS if pre.ignore_merges else NOTHING,
        )

    def encode(self, text: str, *, after_special: bool) -> list[int]:  # noqa: ARG002 (no space is ever added)
        """Return the ids of a text without special tokens. Bytes that are not in the vocabulary are dropped."""
        parts = cut(text, self._boundary)
        return self._merge(chain.from_iterable(map(self._split, parts)) if self._split else parts)

    def piece(self, id: int) -> bytes:
        """Return the bytes of a normal token; a character that encodes no byte stands for itself."""
        text = self.vocabulary.tokens[id].decode("utf-8", "replace")
        return b"".join(BYTE_OF.get(char) or char.encode() for char in text)


def _pre_tokenizer(pre: PreTokenizer) -> "pre_tokenizers.PreTokenizer":
    from tokenizers import Regex, pre_tokenizers

    splits = [pre_tokenizers.Split(Regex(pin_unicode_version(pattern)), "isolated") for pattern in pre.patterns]
    return pre_tokenizers.Sequence(splits)
