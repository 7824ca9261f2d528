"""SentencePiece BPE, `tokenizer.ggml.model` = "llama": the neighbours whose union scores highest merge first.

The work itself is done by `sentencepiece`, from a model that sentencepiece_model.py makes of the vocabulary.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from localinfer.files.gguf import GGUF
from localinfer.text import printable

from .sentencepiece_model import serialized_model
from .vocabulary import BYTE, Vocabulary, read_per_token, read_vocabulary, same_token_twice

if TYPE_CHECKING:
    import sentencepiece

DEFAULT_IDS = {"unknown": 0, "bos": 1, "eos": 2}  # SentencePiece's own, for files that do not say
SPACE = "▁".encode()


class SentencePieceBPE:
    """Raises LocalInferError, naming the key, where the file's vocabulary cannot work."""

    add_bos = True

    def __init__(self, f: GGUF) -> None:
        self.vocabulary = read_vocabulary(f, DEFAULT_IDS)
        self.adds_space = f.get("tokenizer.ggml.add_space_prefix", bool, True)
        self._byte_of = _byte_tokens(f, self.vocabulary)
        self._engine = _engine(f, self.vocabulary, bool(self._byte_of))

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """The ids of a text without special tokens; `after_special`: one comes before it, or nothing does."""
        ids: list[int] = self._engine.EncodeAsIds(" " + text if self.adds_space and after_special else text)
        if self._byte_of:
            return ids
        unknown, n_vocab = self.vocabulary.unk or 0, len(self.vocabulary)
        return [id if id < n_vocab else unknown for id in ids]

    def piece(self, id: int) -> bytes:
        """The bytes that a normal token or a byte token stands for."""
        return self._byte_of.get(id) or self.vocabulary.tokens[id].replace(SPACE, b" ")


def _byte_tokens(f: GGUF, vocabulary: Vocabulary) -> dict[int, bytes]:
    """id -> byte of the tokens <0x00> to <0xFF>, into which unknown characters fall apart: all or none."""
    key = "tokenizer.ggml.tokens"
    byte_of = {b"<0x%02X>" % byte: bytes([byte]) for byte in range(256)}
    ids = {vocabulary.tokens[id]: id for id in vocabulary.ids_of(BYTE)}
    for text, id in ids.items():
        if text not in byte_of:
            raise f.error(key, f"token {id} is of type byte, but reads {printable(repr(text), 40)}")
    missing = [text.decode() for text in byte_of if text not in ids]
    if ids and missing:
        raise f.error(key, f"the byte token {missing[0]} is missing ({len(missing)} of 256 are)")
    return {id: byte_of[text] for text, id in ids.items()}


def _engine(f: GGUF, vocabulary: Vocabulary, byte_fallback: bool) -> "sentencepiece.SentencePieceProcessor":
    from sentencepiece import SentencePieceProcessor

    engine = SentencePieceProcessor()
    try:
        engine.LoadFromSerializedProto(serialized_model(vocabulary, _scores(f, vocabulary), byte_fallback))
    except (RuntimeError, UnicodeDecodeError):  # the latter when its message quotes a token
        raise same_token_twice(f, vocabulary.tokens) from None
    return engine


def _scores(f: GGUF, vocabulary: Vocabulary) -> NDArray[np.float32]:
    key = "tokenizer.ggml.scores"
    scores = read_per_token(f, key, len(vocabulary)).astype(np.float32)
    odd = np.flatnonzero(~np.isfinite(scores))
    if len(odd):
        raise f.error(key, f"the score of token {odd[0]} is {scores[odd[0]]}")
    return scores
