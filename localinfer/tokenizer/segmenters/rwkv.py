"""RWKV's World vocabulary, `tokenizer.ggml.model` = "rwkv": the longest token that the text begins with, and so on.

Tokens are bytes, which the file spells as Python does: \\n, \\xe4, ...
"""

import re

from localinfer.files.gguf import GGUF
from localinfer.tokenizer.segmenters.prefixes import Prefixes
from localinfer.tokenizer.vocabulary import CONTROL, UNKNOWN, Frame, read_vocabulary

ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|(.))", re.DOTALL)
LETTERS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class Rwkv:
    """Raises LocalInferError, naming the key, where the file's vocabulary cannot work."""

    adds_space = False
    frame = Frame([], [])  # whatever the file says

    def __init__(self, f: GGUF) -> None:
        self.vocabulary = read_vocabulary(f)
        control = set(self.vocabulary.ids_of(CONTROL, UNKNOWN))
        self._texts = [_unescaped(token) for token in self.vocabulary.tokens]
        self._prefixes = Prefixes({text: id for id, text in enumerate(self._texts) if id not in control})

    def encode(self, text: str, *, after_special: bool) -> list[int]:  # noqa: ARG002 (no space is ever added)
        """The ids of a text without special tokens; of a byte without a token the unknown one, or none."""
        content = text.encode()
        unknown = self.vocabulary.unk
        ids = []
        place = 0
        while place < len(content):
            place, id = next(self._prefixes.at(content, place), (place + 1, unknown))
            ids.append(id)
        return [id for id in ids if id is not None]

    def piece(self, id: int) -> bytes:
        """The bytes that a normal token stands for."""
        return self._texts[id]


def _unescaped(token: bytes) -> bytes:
    def meant(escape: re.Match[bytes]) -> bytes:
        code, letter = escape.groups()
        return bytes.fromhex(code.decode()) if code else LETTERS.get(letter, letter)

    return ESCAPE.sub(meant, token)
