"""llama.cpp's tokenizer, the reference for ours. Needs llama-cpp-python; independent of localinfer."""

import ctypes
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import llama_cpp

LONGEST_PIECE = 1 << 16


class Vocabulary:
    """The tokens of a GGUF file, without its weights."""

    def __init__(self, path: Path) -> None:
        quiet()
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise ValueError(f"llama.cpp does not load {path}")
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self._buffer = ctypes.create_string_buffer(LONGEST_PIECE)

    def close(self) -> None:
        llama_cpp.llama_model_free(self._model)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        utf8 = text.encode()
        ids = (llama_cpp.llama_token * (len(utf8) + 16))()
        n = llama_cpp.llama_tokenize(self._vocab, utf8, len(utf8), ids, len(ids), add_special, parse_special)
        assert n >= 0, "a token has at least one byte"
        return list(ids[:n])

    def decode(self, ids: Sequence[int], *, special: bool) -> str:
        """Return the text of all ids, without removing any."""
        array = (llama_cpp.llama_token * len(ids))(*ids)
        n = self._detokenized(array, special)
        if n < 0:
            self._buffer = ctypes.create_string_buffer(-n)
            n = self._detokenized(array, special)
        return self._buffer[:n].decode("utf-8", "replace")

    def _detokenized(self, array: ctypes.Array[ctypes.c_int32], special: bool) -> int:
        """Decode into the buffer; return the number of bytes, or minus the required size if the buffer is too small."""
        n: int = llama_cpp.llama_detokenize(
            self._vocab, array, len(array), self._buffer, len(self._buffer), False, special
        )
        return n

    def piece(self, id: int, *, special: bool) -> bytes:
        """Return the bytes of a token. llama.cpp's note `[UNK_BYTE_...]` is replaced by the character it describes."""
        n = llama_cpp.llama_token_to_piece(self._vocab, id, self._buffer, len(self._buffer), 0, special)
        piece: bytes = self._buffer[:n]
        if b"[UNK_BYTE_" not in piece:
            return piece
        note = rb"\[UNK_BYTE_0x([0-9a-f]+)" + re.escape(self.text(id)) + rb"\]"
        return re.sub(note, lambda match: bytes.fromhex(match[1].decode()), piece)

    def text(self, id: int) -> bytes:
        """Return the token as stored in the file."""
        text: bytes = llama_cpp.llama_vocab_get_text(self._vocab, id)
        return text

    def eog(self) -> Iterable[int]:
        """Yield the ids of the end-of-generation tokens."""
        return (id for id in range(self.n_vocab) if llama_cpp.llama_vocab_is_eog(self._vocab, id))


def tidied(text: str) -> str:
    """Return the text without spaces before English punctuation, as llama.cpp decodes most BPE vocabularies."""
    text = re.sub(" (?=[?!.,])", "", text).replace(" ' ", "'")
    return re.sub(" (?='(?:s|m|re|ve))", "", text)


@llama_cpp.llama_log_callback
def _drop(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    """Discard a log message. The callback must outlive its use by the library."""


def quiet() -> None:
    llama_cpp.llama_log_set(_drop, ctypes.c_void_p(0))
