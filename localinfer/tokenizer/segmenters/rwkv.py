"""RWKV World tokenizer, `tokenizer.ggml.model` = "rwkv": greedy longest match.

Tokens are bytes, which the file escapes as Python does: \\n, \\xe4, ...
"""

import re

from localinfer.gguf.reader import GGUF
from localinfer.tokenizer.segmenters.prefix_index import PrefixIndex
from localinfer.tokenizer.vocabulary import CONTROL, UNKNOWN, BosEos, read_vocabulary

ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|(.))", re.DOTALL)
LETTERS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class Rwkv:
    """RWKV's tokenizer. Raises LocalInferError, naming the key, if the file's vocabulary is unusable."""

    adds_space = False
    bos_eos = BosEos([], [])  # fixed, independent of the file

    def __init__(self, f: GGUF) -> None:
        self.vocabulary = read_vocabulary(f)
        control = set(self.vocabulary.ids_of(CONTROL, UNKNOWN))
        self._texts = [_unescaped(token) for token in self.vocabulary.tokens]
        self._prefixes = PrefixIndex({text: id for id, text in enumerate(self._texts) if id not in control})

    def encode(self, text: str, *, after_special: bool) -> list[int]:  # noqa: ARG002 (no space is ever added)
        """Return the ids of a text without special tokens; a byte without a token becomes the unknown token, if there
        is one.
        """
        content = text.encode()
        unknown = self.vocabulary.unk
        ids = []
        position = 0
        while position < len(content):
            position, id = next(self._prefixes.matches(content, position), (position + 1, unknown))
            ids.append(id)
        return [id for id in ids if id is not None]

    def piece(self, id: int) -> bytes:
        """Return the bytes of a normal token."""
        return self._texts[id]


def _unescaped(token: bytes) -> bytes:
    def unescape(escape: re.Match[bytes]) -> bytes:
        code, letter = escape.groups()
        return bytes.fromhex(code.decode()) if code else LETTERS.get(letter, letter)

    return ESCAPE.sub(unescape, token)
