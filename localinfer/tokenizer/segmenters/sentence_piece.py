"""SentencePiece BPE, `tokenizer.ggml.model` = "llama": the neighbours whose union scores highest merge first.

The work itself is done by `sentencepiece`, from a model that sentencepiece_model.py makes of the vocabulary.
"""

from typing import TYPE_CHECKING

from localinfer.files.gguf import GGUF
from localinfer.tokenizer.segmenters.byte_tokens import read_byte_tokens
from localinfer.tokenizer.segmenters.sentencepiece_model import serialized_model
from localinfer.tokenizer.vocabulary import Vocabulary, read_frame, read_scores, read_vocabulary, same_token_twice

if TYPE_CHECKING:
    import sentencepiece

DEFAULT_IDS = {"unknown": 0, "bos": 1, "eos": 2}  # SentencePiece's own, for files that do not say
SPACE = "▁".encode()


class SentencePieceBPE:
    """Raises LocalInferError, naming the key, where the file's vocabulary cannot work."""

    def __init__(self, f: GGUF) -> None:
        self.vocabulary = read_vocabulary(f, DEFAULT_IDS)
        self.frame = read_frame(f, self.vocabulary, add_bos=True)
        self.adds_space = f.get("tokenizer.ggml.add_space_prefix", bool, True)
        self._byte_of = read_byte_tokens(f, self.vocabulary)
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


def _engine(f: GGUF, vocabulary: Vocabulary, byte_fallback: bool) -> "sentencepiece.SentencePieceProcessor":
    from sentencepiece import SentencePieceProcessor

    engine = SentencePieceProcessor()
    scores = read_scores(f, len(vocabulary))
    try:
        engine.LoadFromSerializedProto(serialized_model(vocabulary, scores, byte_fallback))
    except (RuntimeError, UnicodeDecodeError):  # the latter when its message quotes a token
        raise same_token_twice(f, vocabulary.tokens) from None
    return engine
