"""PLaMo 2's unigram model, `tokenizer.ggml.model` = "plamo2": the way to cut with the best scores, in whole numbers.

It is looked for from the end of the text; of ways that are equally good, the one that begins with the longest token
counts. A character that has no token is written as its bytes.
"""

from operator import itemgetter

import numpy as np

from localinfer.files.gguf import GGUF
from localinfer.tokenizer.segmenters.byte_tokens import read_byte_tokens
from localinfer.tokenizer.segmenters.prefixes import Prefixes
from localinfer.tokenizer.strings import texts
from localinfer.tokenizer.vocabulary import BYTE, CONTROL, TOKENS, UNKNOWN, Frame, read_scores, read_vocabulary

DEFAULT_IDS = {"bos": 1, "eos": 2, "unknown": 0}
SCALE = 10_000  # of the scores
UNKNOWN_SCORE, NEVER = -10_000_000, -20_000_000
BYTE_ORDER_MARK = "\ufeff"


class Plamo2:
    """Raises LocalInferError, naming the key, where the file's vocabulary cannot work."""

    adds_space = False
    frame = Frame([], [])  # whatever the file says

    def __init__(self, f: GGUF) -> None:
        self.vocabulary = read_vocabulary(f, DEFAULT_IDS)
        self._byte_of = read_byte_tokens(f, self.vocabulary)
        self._id_of = {byte[0]: id for id, byte in self._byte_of.items()}
        scores = SCALE * read_scores(f, len(self.vocabulary)).astype(np.float64)
        self._scores: list[int] = np.trunc(scores + np.copysign(0.5, scores)).astype(np.int64).tolist()
        names = texts(f, TOKENS, self.vocabulary.tokens)
        others = set(self.vocabulary.ids_of(BYTE, CONTROL, UNKNOWN))
        usable = (id for id, score in enumerate(self._scores) if score > NEVER and id not in others)
        self._prefixes = Prefixes({names[id]: id for id in usable})

    def encode(self, text: str, *, after_special: bool) -> list[int]:  # noqa: ARG002 (no space is ever added)
        """The ids of a text without special tokens."""
        text = text.removeprefix(BYTE_ORDER_MARK)
        best = [0] * (len(text) + 1)  # the score of the best way from each place to the end
        steps: list[tuple[int, int | None]] = [(0, None)] * len(text)  # and its first token: where it ends, and its id
        for start in reversed(range(len(text))):
            ways: list[tuple[int, int, int | None]] = [
                (best[end] + self._scores[id], end, id) for end, id in self._prefixes.at(text, start)
            ]
            ways.append((best[start + 1] + UNKNOWN_SCORE, start + 1, None))
            best[start], end, id = max(ways, key=itemgetter(0))  # the first of them
            steps[start] = end, id
        ids: list[int] = []
        place = 0
        while place < len(text):
            end, id = steps[place]
            ids += self._bytes_of(text[place]) if id is None else [id]
            place = end
        return ids

    def piece(self, id: int) -> bytes:
        """The bytes that a normal token or a byte token stands for."""
        return self._byte_of.get(id) or self.vocabulary.tokens[id]

    def _bytes_of(self, char: str) -> list[int]:
        return [self._id_of[byte] for byte in char.encode() if byte in self._id_of]
