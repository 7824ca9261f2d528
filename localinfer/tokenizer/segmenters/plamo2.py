"""PLaMo 2's unigram model, `tokenizer.ggml.model` = "plamo2": the segmentation with the highest score, in integers.

The search runs from the end of the text; of equally good segmentations, the one whose first token is longest wins. A
character without a token is encoded as byte tokens.
"""

from operator import itemgetter

import numpy as np

from localinfer.gguf.reader import GGUF
from localinfer.tokenizer.segmenters.byte_tokens import read_byte_tokens
from localinfer.tokenizer.segmenters.prefix_index import PrefixIndex
from localinfer.tokenizer.string_arrays import decode_strings
from localinfer.tokenizer.vocabulary import BYTE, CONTROL, TOKENS, UNKNOWN, BosEos, read_scores, read_vocabulary

DEFAULT_IDS = {"bos": 1, "eos": 2, "unknown": 0}
SCALE = 10_000  # factor of the scores
UNKNOWN_SCORE, NEVER = -10_000_000, -20_000_000
BYTE_ORDER_MARK = "\ufeff"


class Plamo2:
    """PLaMo 2's tokenizer. Raises LocalInferError, naming the key, if the file's vocabulary is unusable."""

    adds_space = False
    bos_eos = BosEos([], [])  # fixed, independent of the file

    def __init__(self, f: GGUF) -> None:
        self.vocabulary = read_vocabulary(f, DEFAULT_IDS)
        self._byte_of = read_byte_tokens(f, self.vocabulary)
        self._id_of = {byte[0]: id for id, byte in self._byte_of.items()}
        scores = SCALE * read_scores(f, len(self.vocabulary)).astype(np.float64)
        self._scores: list[int] = np.trunc(scores + np.copysign(0.5, scores)).astype(np.int64).tolist()
        names = decode_strings(f, TOKENS, self.vocabulary.tokens)
        excluded = set(self.vocabulary.ids_of(BYTE, CONTROL, UNKNOWN))
        usable = (id for id, score in enumerate(self._scores) if score > NEVER and id not in excluded)
        self._prefixes = PrefixIndex({names[id]: id for id in usable})

    def encode(self, text: str, *, after_special: bool) -> list[int]:  # noqa: ARG002 (no space is ever added)
        """Return the ids of a text without special tokens."""
        text = text.removeprefix(BYTE_ORDER_MARK)
        best = [0] * (len(text) + 1)  # score of the best segmentation from each position to the end
        first_tokens: list[tuple[int, int | None]] = [(0, None)] * len(text)  # its first token: end and id
        for start in reversed(range(len(text))):
            candidates: list[tuple[int, int, int | None]] = [
                (best[end] + self._scores[id], end, id) for end, id in self._prefixes.matches(text, start)
            ]
            candidates.append((best[start + 1] + UNKNOWN_SCORE, start + 1, None))
            best[start], end, id = max(candidates, key=itemgetter(0))  # the first of them
            first_tokens[start] = end, id
        ids: list[int] = []
        position = 0
        while position < len(text):
            end, id = first_tokens[position]
            ids += self._bytes_of(text[position]) if id is None else [id]
            position = end
        return ids

    def piece(self, id: int) -> bytes:
        """Return the bytes of a normal token or a byte token."""
        return self._byte_of.get(id) or self.vocabulary.tokens[id]

    def _bytes_of(self, char: str) -> list[int]:
        return [self._id_of[byte] for byte in char.encode() if byte in self._id_of]
