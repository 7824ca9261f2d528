"""SentencePiece's unigram model, `tokenizer.ggml.model` = "t5": of all ways to cut, the one with the best scores.

The text is normalized as the file says. (llama.cpp leaves out what stands where a user-defined token could begin,
even if none is there: a "<" and an accent stay two characters, if <extra_id_0> is such a token. Not so here.)
"""

from math import inf

import numpy as np

from localinfer.files.gguf import GGUF
from localinfer.tokenizer.segmenters.charsmap import Charsmap
from localinfer.tokenizer.segmenters.prefixes import Prefixes
from localinfer.tokenizer.strings import texts
from localinfer.tokenizer.vocabulary import (
    NORMAL,
    TOKENS,
    UNUSED,
    USER_DEFINED,
    read_frame,
    read_scores,
    read_vocabulary,
)

DEFAULT_IDS = {"eos": 1, "unknown": 2}  # T5's, for files that do not say
SPACE = "▁"
UNKNOWN = -1  # while cutting
UNKNOWN_PENALTY = np.float32(10)  # below the worst token


class Unigram:
    """Raises LocalInferError, naming the key, where the file's vocabulary cannot work."""

    def __init__(self, f: GGUF) -> None:
        self.vocabulary = read_vocabulary(f, DEFAULT_IDS)
        self.frame = read_frame(f, self.vocabulary, add_eos=True)
        self.adds_space = f.get("tokenizer.ggml.add_space_prefix", bool, False)
        self._merges_spaces = f.get("tokenizer.ggml.remove_extra_whitespaces", bool, False)
        charsmap = f.get("tokenizer.ggml.precompiled_charsmap", np.ndarray, np.zeros(0, np.uint8))
        self._charsmap = Charsmap(charsmap.tobytes())

        types = self.vocabulary.types
        scores = read_scores(f, len(types))
        self._unknown_score = float(scores[types == NORMAL].min(initial=0) - UNKNOWN_PENALTY)
        scores[types == USER_DEFINED] = 0
        self._scores: list[float] = scores.tolist()  # float64 from here on: sums decide
        names = texts(f, TOKENS, self.vocabulary.tokens)
        self._prefixes = Prefixes({names[id]: id for id in self.vocabulary.ids_of(NORMAL, USER_DEFINED, UNUSED)})

    def encode(self, text: str, *, after_special: bool) -> list[int]:  # noqa: ARG002 (every part gets its space)
        """The ids of a text without special tokens; neighbours that are unknown become one unknown token."""
        ids = self._best(self._normalized(text))
        firsts = [id for id, before in zip(ids, [None, *ids], strict=False) if id != UNKNOWN or before != UNKNOWN]
        unk = self.vocabulary.unk
        return [unk if id == UNKNOWN and unk is not None else id for id in firsts if id != UNKNOWN or unk is not None]

    def piece(self, id: int) -> bytes:
        """The bytes that a normal token stands for."""
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
        """Viterbi's algorithm: the best way to each place goes on from the best way to an earlier one."""
        best = [0.0] + [-inf] * len(text)
        last: list[tuple[int, int]] = [(0, UNKNOWN)] * len(best)  # of the best way to a place: start and id

        def offer(start: int, end: int, id: int, score: float) -> None:
            if best[start] + score > best[end]:
                best[end], last[end] = best[start] + score, (start, id)

        for start in range(len(text)):
            end = 0
            for end, id in self._prefixes.at(text, start):
                offer(start, end, id, self._scores[id])
            if end != start + 1:  # the shortest one, if any, is longer than a character
                offer(start, start + 1, UNKNOWN, self._unknown_score)
        ids = []
        end = len(text)
        while end:
            end, id = last[end]
            ids.append(id)
        return ids[::-1]
