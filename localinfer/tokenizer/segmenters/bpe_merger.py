"""BPE merging: the adjacent pair with the first merge in the file is merged, until no merge applies.

The `tokenizers` library does the work. This module adds two rules: text never becomes a control token, and text
without a token is split into bytes.
"""

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF, StringArray
from localinfer.tokenizer.string_arrays import NUL, decode_bytes, decode_strings, nul_prefixed
from localinfer.tokenizer.vocabulary import CONTROL, TOKENS, UNKNOWN, Vocabulary, duplicate_token_error

if TYPE_CHECKING:
    import tokenizers

MERGES = "tokenizer.ggml.merges"
SPACE = 32
Pair = tuple[str, str]


class BPEMerger:
    """Merges words into tokens. `ids` maps the texts that merges may produce; `byte_token` returns the token text of a
    byte.

    `without_token` returns characters that are not in the vocabulary. They get placeholder ids after the vocabulary
    and are split into bytes after merging; if they were dropped, their neighbours would become adjacent and could
    merge. Raises LocalInferError, naming the key, if the file's vocabulary is unusable.
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
        names = decode_strings(f, TOKENS, vocabulary.tokens)
        self.ids = dict(zip(names, range(len(names)), strict=True))
        if len(self.ids) < len(names):
            raise duplicate_token_error(f, vocabulary.tokens)
        control = {names[id] for id in vocabulary.ids_of(CONTROL, UNKNOWN)}
        for text in control:
            del self.ids[text]
        pairs = _without(_pairs(f), {names[id] for id in vocabulary.relabelled})
        self._n_vocab, self._byte_token = len(names), byte_token
        self._placeholders = without_token(self.ids)
        try:
            _check_lengths(f, vocabulary)
            self._engine = self._build(pairs, options)
        except (ImportError, MemoryError, OSError):
            raise  # not caused by the file
        except Exception:  # no narrower class: a merge uses or makes a text without a token
            pairs = self._repair_merges(pairs, control)
            self._engine = self._build(pairs, options)
        self._placeholder_bytes = [self._bytes_of(text) for text in self._placeholders]

    def __call__(self, words: list[str]) -> list[list[int]]:
        """Return the ids of each word."""
        encodings = self._engine.encode_batch_fast(words, add_special_tokens=False)
        return [self._real(encoding.ids) for encoding in encodings]

    def set_pre_tokenizer(self, pre_tokenizer: "tokenizers.pre_tokenizers.PreTokenizer") -> None:
        """Set how texts are split into words before merging."""
        self._engine.pre_tokenizer = pre_tokenizer

    def _build(self, pairs: list[Pair], options: dict[str, Any]) -> "tokenizers.Tokenizer":
        ids = self.ids | {text: self._n_vocab + index for index, text in enumerate(self._placeholders)}
        return _engine(ids, pairs, options)

    def _repair_merges(self, pairs: list[Pair], control: set[str]) -> list[Pair]:
        """Return the merges that produce no control token; other texts without a token get a placeholder."""
        pairs = _without([pair for pair in pairs if all(pair)], control)
        texts = dict.fromkeys(chain.from_iterable((*pair, "".join(pair)) for pair in pairs))
        self._placeholders = list(
            dict.fromkeys([*self._placeholders, *(text for text in texts if text not in self.ids)])
        )
        return pairs

    def _bytes_of(self, text: str) -> list[int]:
        names = map(self._byte_token, text.encode())
        return [self.ids[name] for name in names if name in self.ids]

    def _real(self, ids: list[int]) -> list[int]:
        if not self._placeholder_bytes or max(ids, default=0) < self._n_vocab:
            return ids
        return [
            real for id in ids for real in ([id] if id < self._n_vocab else self._placeholder_bytes[id - self._n_vocab])
        ]


def _check_lengths(f: GGUF, vocabulary: Vocabulary) -> None:
    """Raise ValueError if a merge is longer than every token; the library would panic."""
    mergeable = ~np.isin(vocabulary.types, (CONTROL, UNKNOWN))
    longest = vocabulary.tokens.lengths[mergeable].max(initial=0)
    if f.get(MERGES, StringArray).lengths.max(initial=0) - len(" ") > longest:
        raise ValueError


def _engine(ids: dict[str, int], pairs: list[Pair], options: dict[str, Any]) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer, models

    return Tokenizer(models.BPE(vocab=ids, merges=pairs, **options))


def _pairs(f: GGUF) -> list[Pair]:
    """Return the merges in order: "Ġ t" means that Ġ and t become Ġt."""
    merges = f.get(MERGES, StringArray)
    stored = nul_prefixed(merges)
    separators = stored[(stored == NUL) | (stored == SPACE)]
    if len(separators) != 2 * len(merges) or separators[::2].any() or not separators[1::2].all():
        invalid = (index for index, merge in enumerate(merges) if merge.count(b" ") != 1 or b"\0" in merge)
        index = next(invalid)
        shown = printable(repr(merges[index]), 80)
        raise f.error(MERGES, f"merge {index} is {shown}, not two parts with a space between")
    _, *halves = decode_bytes(f, MERGES, stored).replace("\0", " ").split(" ")
    return list(zip(halves[::2], halves[1::2], strict=True))


def _without(pairs: list[Pair], forbidden: set[str]) -> list[Pair]:
    """Return the merges that neither use nor produce a forbidden token."""
    if not forbidden:
        return pairs
    return [(a, b) for a, b in pairs if not (a in forbidden or b in forbidden or a + b in forbidden)]
