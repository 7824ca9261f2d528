"""Merging, the heart of BPE: the neighbours whose merge comes first in the file become one, until none is left.

The work itself is done by `tokenizers`. What is added here: no text ever becomes a control token, and what has
no token falls apart into bytes.
"""

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from localinfer.files.gguf import GGUF, StringArray
from localinfer.text import printable
from localinfer.tokenizer.strings import NUL, behind_nul, decoded, texts
from localinfer.tokenizer.vocabulary import CONTROL, TOKENS, UNKNOWN, Vocabulary, same_token_twice

if TYPE_CHECKING:
    import tokenizers

MERGES = "tokenizer.ggml.merges"
SPACE = 32
Pair = tuple[str, str]


class Merging:
    """`ids` are those of the texts that merges may make; `byte_token` says what the token of a byte is called.

    `without_token`: characters that would be unknown. They get ids behind the vocabulary, and fall apart after
    the merging: if they were simply not there, their neighbours would meet and could merge.
    Raises LocalInferError, naming the key, where the file's vocabulary cannot work.
    """

    def __init__(
        self,
        f: GGUF,
        vocabulary: Vocabulary,
        *,
        byte_token: Callable[[int], str],
        without_token: Callable[[dict[str, int]], list[str]],
        **options: Any,
    ) -> None:
        names = texts(f, TOKENS, vocabulary.tokens)
        self.ids = dict(zip(names, range(len(names)), strict=True))
        if len(self.ids) < len(names):
            raise same_token_twice(f, vocabulary.tokens)
        control = {names[id] for id in vocabulary.ids_of(CONTROL, UNKNOWN)}
        for text in control:
            del self.ids[text]
        pairs = _without(_pairs(f), {names[id] for id in vocabulary.relabelled})
        self._n_vocab, self._byte_token = len(names), byte_token
        self._stand_ins = without_token(self.ids)
        try:
            _check_lengths(f, vocabulary)
            self._engine = self._built(pairs, options)
        except (ImportError, MemoryError, OSError):
            raise  # not the file's fault
        except Exception:  # of no narrower class: a merge has a part, or makes what is not in the vocabulary
            pairs = self._mended(pairs, control)
            self._engine = self._built(pairs, options)
        self._apart = [self._bytes_of(text) for text in self._stand_ins]

    def __call__(self, words: list[str]) -> list[list[int]]:
        """The ids of each word."""
        found = self._engine.encode_batch_fast(words, add_special_tokens=False)
        return [self._real(encoding.ids) for encoding in found]

    def use(self, pre_tokenizer: "tokenizers.pre_tokenizers.PreTokenizer") -> None:
        """How words are cut before."""
        self._engine.pre_tokenizer = pre_tokenizer

    def _built(self, pairs: list[Pair], options: dict[str, Any]) -> "tokenizers.Tokenizer":
        ids = self.ids | {text: self._n_vocab + place for place, text in enumerate(self._stand_ins)}
        return _engine(ids, pairs, options)

    def _mended(self, pairs: list[Pair], control: set[str]) -> list[Pair]:
        """The merges that make no control token; what else has no token gets a stand-in."""
        pairs = _without([pair for pair in pairs if all(pair)], control)
        made = dict.fromkeys(chain.from_iterable((*pair, "".join(pair)) for pair in pairs))
        self._stand_ins = list(dict.fromkeys([*self._stand_ins, *(text for text in made if text not in self.ids)]))
        return pairs

    def _bytes_of(self, text: str) -> list[int]:
        names = map(self._byte_token, text.encode())
        return [self.ids[name] for name in names if name in self.ids]

    def _real(self, ids: list[int]) -> list[int]:
        if not self._apart or max(ids, default=0) < self._n_vocab:
            return ids
        return [real for id in ids for real in ([id] if id < self._n_vocab else self._apart[id - self._n_vocab])]


def _check_lengths(f: GGUF, vocabulary: Vocabulary) -> None:
    """ValueError where a merge makes a longer text than any token has: the library would panic."""
    mergeable = ~np.isin(vocabulary.types, (CONTROL, UNKNOWN))
    longest = vocabulary.tokens.lengths[mergeable].max(initial=0)
    if f.get(MERGES, StringArray).lengths.max(initial=0) - len(" ") > longest:
        raise ValueError


def _engine(ids: dict[str, int], pairs: list[Pair], options: dict[str, Any]) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer, models

    return Tokenizer(models.BPE(vocab=ids, merges=pairs, **options))


def _pairs(f: GGUF) -> list[Pair]:
    """The merges, the first to be made first: "Ġ t" says that Ġ and t become Ġt."""
    merges = f.get(MERGES, StringArray)
    stored = behind_nul(merges)
    marks = stored[(stored == NUL) | (stored == SPACE)]
    if len(marks) != 2 * len(merges) or marks[::2].any() or not marks[1::2].all():
        odd = (place for place, merge in enumerate(merges) if merge.count(b" ") != 1 or b"\0" in merge)
        place = next(odd)
        shown = printable(repr(merges[place]), 80)
        raise f.error(MERGES, f"merge {place} is {shown}, not two parts with a space between")
    _, *halves = decoded(f, MERGES, stored).replace("\0", " ").split(" ")
    return list(zip(halves[::2], halves[1::2], strict=True))


def _without(pairs: list[Pair], forbidden: set[str]) -> list[Pair]:
    """The merges that neither take nor make a forbidden token."""
    if not forbidden:
        return pairs
    return [(a, b) for a, b in pairs if not (a in forbidden or b in forbidden or a + b in forbidden)]
