"""llama.cpp's own tokenizer, the oracle of ours: needs llama-cpp-python, and nothing of localinfer.

As a program it answers requests, so that a test in another environment can ask:

    python tests/llama_cpp_vocabulary.py model.gguf
    < {"text": "Hello", "add_special": true, "parse_special": false}      one line each
    > [2, 9259]
"""

import ctypes
import json
import sys
from collections.abc import Iterator
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

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        utf8 = text.encode()
        ids = (llama_cpp.llama_token * (len(utf8) + 16))()
        n = llama_cpp.llama_tokenize(self._vocab, utf8, len(utf8), ids, len(ids), add_special, parse_special)
        assert n >= 0, "a token stands for one byte at least"
        return list(ids[:n])

    def piece(self, id: int, *, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(LONGEST_PIECE)
        n = llama_cpp.llama_token_to_piece(self._vocab, id, buffer, len(buffer), 0, special)
        return buffer.raw[:n]

    def eog(self) -> Iterator[int]:
        """The ids that end a generation."""
        return (id for id in range(self.n_vocab) if llama_cpp.llama_vocab_is_eog(self._vocab, id))


@llama_cpp.llama_log_callback
def _drop(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    """A log that keeps nothing; it must outlive the library's use of it."""


def quiet() -> None:
    llama_cpp.llama_log_set(_drop, ctypes.c_void_p(0))


def serve(path: Path) -> None:
    vocabulary = Vocabulary(path)
    for line in sys.stdin:
        print(json.dumps(vocabulary.encode(**json.loads(line))), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
