"""SentencePiece BPE, `tokenizer.ggml.model` = "llama": the adjacent pair that forms the token with the highest
score merges first.

The `sentencepiece` library does the work, with a model that sentencepiece_model.py builds from the vocabulary.
"""

from typing import TYPE_CHECKING

from localinfer.gguf.reader import GGUF
from localinfer.tokenizer.segmenters.byte_tokens import read_byte_tokens
from localinfer.tokenizer.segmenters.sentencepiece_model import serialized_model
from localinfer.tokenizer.vocabulary import (
    Vocabulary,
    duplicate_token_error,
    read_bos_eos,
    read_scores,
    read_vocabulary,
)

if TYPE_CHECKING:
    import sentencepiece

DEFAULT_IDS = {"unknown": 0, "bos": 1, "eos": 2}  # SentencePiece's defaults
SPACE = "▁".encode()


class SentencePieceBPE:
    """SentencePiece BPE. Raises LocalInferError, naming the key, if the file's vocabulary is unusable."""

    def __init__(self, f: GGUF) -> None:
        self.vocabulary = read_vocabulary(f, DEFAULT_IDS)
        self.bos_eos = read_bos_eos(f, self.vocabulary, add_bos=True)
        self.adds_space = f.get("tokenizer.ggml.add_space_prefix", bool, True)
        self._byte_of = read_byte_tokens(f, self.vocabulary)
        self._engine = _engine(f, self.vocabulary, bool(self._byte_of))

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens. `after_special`: the text follows a special token or
        nothing.
        """
        ids: list[int] = self._engine.EncodeAsIds(" " + text if self.adds_space and after_special else text)
        if self._byte_of:
            return ids
        unknown, n_vocab = self.vocabulary.unk or 0, len(self.vocabulary)
        return [id if id < n_vocab else unknown for id in ids]

    def piece(self, id: int) -> bytes:
        """Return the bytes of a normal token or a byte token."""
        return self._byte_of.get(id) or self.vocabulary.tokens[id].replace(SPACE, b" ")


def _engine(f: GGUF, vocabulary: Vocabulary, byte_fallback: bool) -> "sentencepiece.SentencePieceProcessor":
    from sentencepiece import SentencePieceProcessor

    engine = SentencePieceProcessor()
    scores = read_scores(f, len(vocabulary))
    try:
        engine.LoadFromSerializedProto(serialized_model(vocabulary, scores, byte_fallback))
    except (RuntimeError, UnicodeDecodeError):  # the latter when its message quotes a token
        raise duplicate_token_error(f, vocabulary.tokens) from None
    return engine
