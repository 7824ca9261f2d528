"""Byte-level BPE, `tokenizer.ggml.model` = "gpt2": regular expressions cut out words, whose bytes are merged.

Such a vocabulary spells bytes as characters: the printable ones of Latin-1 stand for themselves, the others
are moved up to U+0100 and beyond, so that a space is written as Ġ. The work itself is done by `tokenizers`.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import Unsupported
from localinfer.files.gguf import GGUF, StringArray
from localinfer.text import printable

from .pretokenizers import NAMED, PreTokenizer
from .vocabulary import CONTROL, UNKNOWN, read_vocabulary, same_token_twice

if TYPE_CHECKING:
    import tokenizers

PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
MOVED = [byte for byte in range(256) if byte not in PRINTABLE]
BYTE_OF = {chr(byte): bytes([byte]) for byte in PRINTABLE}
BYTE_OF |= {chr(0x100 + place): bytes([byte]) for place, byte in enumerate(MOVED)}
assert len(BYTE_OF) == 256

NUL, SPACE = 0, 32
Pair = tuple[str, str]


class ByteLevelBPE:
    """Raises LocalInferError or Unsupported, naming the key, where the file's vocabulary cannot work."""

    adds_space = False

    def __init__(self, f: GGUF) -> None:
        pre = _pre_tokenizer(f)
        self.vocabulary = read_vocabulary(f, defaults={})
        self.add_bos = pre.add_bos
        texts = _strings(f, "tokenizer.ggml.tokens", self.vocabulary.tokens)
        ids = dict(zip(texts, range(len(texts)), strict=True))
        if len(ids) < len(texts):
            raise same_token_twice(f, self.vocabulary.tokens)
        pairs = _without(_pairs(f), {texts[id] for id in self.vocabulary.relabelled})
        try:
            self._engine = _engine(pre, self._mergeable(ids, texts), pairs)
        except (ImportError, MemoryError, OSError):
            raise  # not the file's fault
        except Exception as error:  # of no narrower class: a merge makes what is not in the vocabulary
            what = printable(str(error).rpartition(": ")[2])
            raise f.error("tokenizer.ggml.merges", what) from None

    def encode(self, text: str, *, after_special: bool) -> list[int]:  # noqa: ARG002 (no space is ever added)
        """The ids of a text without special tokens. A byte that the vocabulary does not have is left out."""
        ids: list[int] = self._engine.encode_batch_fast([text], add_special_tokens=False)[0].ids
        n_vocab = len(self.vocabulary)
        return [id for id in ids if id < n_vocab] if self._stand_ins else ids

    def piece(self, id: int) -> bytes:
        """The bytes that a normal token stands for; a character that spells no byte stands for itself."""
        text = self.vocabulary.tokens[id].decode("utf-8", "replace")
        return b"".join(BYTE_OF.get(char) or char.encode() for char in text)

    def _mergeable(self, ids: dict[str, int], texts: list[str]) -> dict[str, int]:
        """What merges may make: not the control tokens, so that no text ever becomes one.

        A byte without a token gets an id behind the vocabulary, which `encode` drops: if it were simply
        unknown, its two neighbours would meet and could merge.
        """
        for id in self.vocabulary.ids_of(CONTROL, UNKNOWN):
            del ids[texts[id]]
        self._stand_ins = [char for char in BYTE_OF if char not in ids]
        return ids | {char: len(texts) + place for place, char in enumerate(self._stand_ins)}


def _pre_tokenizer(f: GGUF) -> PreTokenizer:
    """Never a default: with the wrong one a model still answers, only worse, and nobody knows why."""
    key = "tokenizer.ggml.pre"
    if key not in f.metadata:
        raise f.error(key, "is missing; convert the model again with a newer converter", Unsupported)
    name = f.get(key, str)
    if name not in NAMED:
        raise f.error(key, f"{printable(repr(name), 80)} is not a known pre-tokenizer", Unsupported)
    return NAMED[name]


def _pairs(f: GGUF) -> list[Pair]:
    """The merges, the most frequent first: "Ġ t" says that Ġ and t become Ġt."""
    key = "tokenizer.ggml.merges"
    merges = f.get(key, StringArray)
    stored = _behind_nul(merges)
    marks = stored[(stored == NUL) | (stored == SPACE)]
    if len(marks) != 2 * len(merges) or marks[::2].any() or not marks[1::2].all():
        odd = (place for place, merge in enumerate(merges) if merge.count(b" ") != 1 or b"\0" in merge)
        place = next(odd)
        shown = printable(repr(merges[place]), 80)
        raise f.error(key, f"merge {place} is {shown}, not two parts with a space between")
    _, *halves = _decoded(f, key, stored).replace("\0", " ").split(" ")
    return list(zip(halves[::2], halves[1::2], strict=True))


def _without(pairs: list[Pair], forbidden: set[str]) -> list[Pair]:
    """The merges that neither take nor make a forbidden token."""
    if not forbidden:
        return pairs
    return [(a, b) for a, b in pairs if not (a in forbidden or b in forbidden or a + b in forbidden)]


def _engine(pre: PreTokenizer, ids: dict[str, int], pairs: list[Pair]) -> "tokenizers.Tokenizer":
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    engine = Tokenizer(models.BPE(vocab=ids, merges=pairs, ignore_merges=pre.ignore_merges))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.pre_tokenizer = pre_tokenizers.Sequence([*cuts, spelling])
    return engine


def _strings(f: GGUF, key: str, array: StringArray) -> list[str]:
    _, *texts = _decoded(f, key, _behind_nul(array)).split("\0")
    if len(texts) != len(array):
        raise f.error(key, "a string has a NUL inside")
    return texts


def _decoded(f: GGUF, key: str, stored: NDArray[np.uint8]) -> str:
    try:
        return stored.tobytes().decode()
    except UnicodeDecodeError:
        raise f.error(key, "not every string is UTF-8") from None


def _behind_nul(array: StringArray) -> NDArray[np.uint8]:
    """All strings of an array at once, without a Python loop over them.

    In the file each one stands behind its length, 8 bytes; a NUL takes the length's place:

        05 00 00 00 00 00 00 00  H  e  l  l  o  02 00 00 00 00 00 00 00  a  n
                             00  H  e  l  l  o                       00  a  n
    """
    if not len(array):
        return np.empty(0, np.uint8)
    begin, end = int(array.offsets[0]) - 8, int(array.offsets[-1] + array.lengths[-1])
    stored = array.data[begin:end].copy()
    keep = np.ones(len(stored), bool)
    for place in range(1, 8):
        keep[array.offsets - begin - place] = False
    stored[array.offsets - begin - 8] = NUL
    return stored[keep]
