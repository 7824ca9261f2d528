"""SentencePiece's unigram model, `tokenizer.ggml.model` = "t5": the segmentation with the highest total score.

The text is normalized with the map in the file. Unlike llama.cpp, normalization also applies where a user-defined token
could begin but does not: with a token <extra_id_0>, llama.cpp keeps "<" and a following accent as two characters.
"""

from math import inf

import numpy as np

from localinfer.gguf.reader import GGUF
from localinfer.tokenizer.segmenters.charsmap import Charsmap
from localinfer.tokenizer.segmenters.prefix_index import PrefixIndex
from localinfer.tokenizer.string_arrays import decode_strings
from localinfer.tokenizer.vocabulary import (
    NORMAL,
    TOKENS,
    UNUSED,
    USER_DEFINED,
    read_bos_eos,
    read_scores,
    read_vocabulary,
)

DEFAULT_IDS = {"eos": 1, "unknown": 2}  # T5's defaults
SPACE = "▁"
UNKNOWN = -1  # placeholder id during the search
UNKNOWN_PENALTY = np.float32(10)  # below the lowest score of a token


class Unigram:
    """The unigram tokenizer. Raises LocalInferError, naming the key, if the file's vocabulary is unusable."""

    def __init__(self, f: GGUF) -> None:
        self.vocabulary = read_vocabulary(f, DEFAULT_IDS)
        self.bos_eos = read_bos_eos(f, self.vocabulary, add_eos=True)
        self.adds_space = f.get("tokenizer.ggml.add_space_prefix", bool, False)
        self._merges_spaces = f.get("tokenizer.ggml.remove_extra_whitespaces", bool, False)
        charsmap = f.get("tokenizer.ggml.precompiled_charsmap", np.ndarray, np.zeros(0, np.uint8))
        self._charsmap = Charsmap(charsmap.tobytes())

        types = self.vocabulary.types
        scores = read_scores(f, len(types))
        self._unknown_score = float(scores[types == NORMAL].min(initial=0) - UNKNOWN_PENALTY)
        scores[types == USER_DEFINED] = 0
        self._scores: list[float] = scores.tolist()  # float64 from here on: sums are compared
        names = decode_strings(f, TOKENS, self.vocabulary.tokens)
        self._prefixes = PrefixIndex({names[id]: id for id in self.vocabulary.ids_of(NORMAL, USER_DEFINED, UNUSED)})

    def encode(self, text: str, *, after_special: bool) -> list[int]:  # noqa: ARG002 (every text gets its space)
        """Return the ids of a text without special tokens; adjacent unknown characters become one unknown token."""
        ids = self._best(self._normalized(text))
        merged = [id for id, previous in zip(ids, [None, *ids], strict=False) if id != UNKNOWN or previous != UNKNOWN]
        unk = self.vocabulary.unk
        return [unk if id == UNKNOWN and unk is not None else id for id in merged if id != UNKNOWN or unk is not None]

    def piece(self, id: int) -> bytes:
        """Return the bytes of a normal token."""
        return self.vocabulary.tokens[id].replace(SPACE.encode(), b" ")

    def _normalized(self, text: str) -> str:
        text = self._charsmap.normalize(text)
        if self._merges_spaces:
            return "".join(SPACE + word for word in text.split(" ") if word)
        spaces = len(text) - len(text.lstrip(" "))
        if self.adds_space and spaces < len(text):
            text = f"{text[:spaces]} {text[spaces:]}"
        return text.replace(" ", SPACE)

    def _best(self, text: str) -> list[int]:
        """Return the best segmentation by the Viterbi algorithm."""
        best = [0.0] + [-inf] * len(text)
        last: list[tuple[int, int]] = [(0, UNKNOWN)] * len(best)  # start and id of the best last token

        def update(start: int, end: int, id: int, score: float) -> None:
            if best[start] + score > best[end]:
                best[end], last[end] = best[start] + score, (start, id)

        for start in range(len(text)):
            end = 0
            for end, id in self._prefixes.matches(text, start):
                update(start, end, id, self._scores[id])
            if end != start + 1:  # no token has exactly this one character
                update(start, start + 1, UNKNOWN, self._unknown_score)
        ids = []
        end = len(text)
        while end:
            end, id = last[end]
            ids.append(id)
        return ids[::-1]
