"""BPE merging: the adjacent pair with the first merge in the file is merged, until no merge applies.

The `tokenizers` library does the work. This module adds two rules: text never becomes a control token, and text
without a token is split into bytes.
"""

from collections.abc import Callable
from functools import cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF, StringArray
from localinfer.tokenizer.string_arrays import NUL, StringIndex, decode_bytes, decode_strings, nul_prefixed
from localinfer.tokenizer.vocabulary import CONTROL, TOKENS, UNKNOWN, Vocabulary, duplicate_token_error

if TYPE_CHECKING:
    import tokenizers

MERGES = "tokenizer.ggml.merges"
SPACE = 32
SHORT_TEXT = 256  # characters
PART = 10_000  # tokens that are put into a dictionary at once
Pair = tuple[str, str]


class BPEMerger:
    """Merges words into tokens. `ids` maps the texts that merges may produce; `byte_token` returns the token text of a
    byte.

    `without_token` returns characters that are not in the vocabulary. They get placeholder ids after the vocabulary
    and are split into bytes after merging; if they were dropped, their neighbours would become adjacent and could
    merge. Raises LocalInferError, naming the key, if the file's vocabulary is unusable.

    Passing all merges to the library takes a fifth of the time to the first token. The first words, up to SHORT_TEXT
    characters, are therefore merged in Python, unless they need a rule for texts without a token.
    """

    def __init__(
        self,
        f: GGUF,
        vocabulary: Vocabulary,
        *,
        byte_token: Callable[[int], str],
        without_token: Callable[[dict[str, int]], list[str]],
        pre_tokenizer: "tokenizers.pre_tokenizers.PreTokenizer",
        **options: Any,
    ) -> None:
        names = decode_strings(f, TOKENS, vocabulary.tokens)
        self.ids: dict[str, int] = {}
        for start in range(0, len(names), PART):  # a dictionary made at once would keep other threads from running
            self.ids.update(zip(names[start : start + PART], range(start, len(names)), strict=False))
        if len(self.ids) < len(names):
            raise duplicate_token_error(f, vocabulary.tokens)
        self._control = {names[id] for id in vocabulary.ids_of(CONTROL, UNKNOWN)}
        for text in self._control:
            del self.ids[text]
        self._relabelled = {names[id] for id in vocabulary.relabelled}
        self._merges = _read_merges(f)
        self._f, self._vocabulary, self._byte_token = f, vocabulary, byte_token
        self._placeholders = without_token(self.ids)
        self._pre_tokenizer, self._options = pre_tokenizer, options
        self._ranks: dict[Pair, int] = {}  # the rank of a pair that occurred
        self._characters_left = SHORT_TEXT

    def __call__(self, words: list[str]) -> list[list[int]]:
        """Return the ids of each word."""
        self._characters_left -= sum(map(len, words))
        if self._characters_left >= 0:
            merged = [self._merge_pieces(word) for word in words]
            ids = [each for each in merged if each is not None]
            if len(ids) == len(words):
                return ids
            self._characters_left = 0
        encodings = self._engine.encode_batch_fast(words, add_special_tokens=False)
        return [self._real(encoding.ids) for encoding in encodings]

    def _merge_pieces(self, word: str) -> list[int] | None:
        """Return the ids of a word, which is split before merging; None if only the library can tell them."""
        ids: list[int] = []
        for piece, _ in self._pre_tokenizer.pre_tokenize_str(word):
            tokens = [piece] if self._options.get("ignore_merges") and piece in self.ids else self._merge(piece)
            if any(token not in self.ids for token in tokens):
                return None
            ids += [self.ids[token] for token in tokens]
        return ids

    def _merge(self, piece: str) -> list[str]:
        """Return the texts that a piece is merged into, up to the first that is not a token."""
        tokens, no_rank = list(piece), len(self._merge_index)
        while len(tokens) > 1:
            ranks = [self._rank(pair) for pair in pairwise(tokens)]
            first = min(ranks)
            if first == no_rank:
                break
            index = ranks.index(first)
            merged = tokens[index] + tokens[index + 1]
            tokens[index : index + 2] = [merged]
            if merged not in self.ids:
                break
        return tokens

    def _rank(self, pair: Pair) -> int:
        """Return the rank of a merge, the number of merges if there is none of this pair."""
        if pair not in self._ranks:
            self._ranks[pair] = self._merge_index.find_last(" ".join(pair).encode(), len(self._merge_index))
        return self._ranks[pair]

    @cached_property
    def _merge_index(self) -> StringIndex:
        return StringIndex(self._f.get(MERGES, StringArray))

    @cached_property
    def _engine(self) -> "tokenizers.Tokenizer":
        f, vocabulary = self._f, self._vocabulary
        pairs = _without(_pairs(self._merges or _read_merges(f)), self._relabelled)
        try:
            _check_lengths(f, vocabulary)
            engine = self._build(pairs)
        except (ImportError, MemoryError, OSError):
            raise  # not caused by the file
        except Exception:  # no narrower class: a merge uses or makes a text without a token
            engine = self._build(self._repair_merges(pairs, self._control))
        self._placeholder_bytes = [self._bytes_of(text) for text in self._placeholders]
        self._merges = ""  # not needed any more
        return engine

    def _build(self, pairs: list[Pair]) -> "tokenizers.Tokenizer":
        from tokenizers import Tokenizer, models

        n_vocab = len(self._vocabulary)
        placeholders = {text: n_vocab + index for index, text in enumerate(self._placeholders)}
        ids = self.ids | placeholders if placeholders else self.ids  # a copy only if it is necessary
        engine = Tokenizer(models.BPE(vocab=ids, merges=pairs, **self._options))
        engine.pre_tokenizer = self._pre_tokenizer
        return engine

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
        n_vocab = len(self._vocabulary)
        if not self._placeholder_bytes or max(ids, default=0) < n_vocab:
            return ids
        return [real for id in ids for real in ([id] if id < n_vocab else self._placeholder_bytes[id - n_vocab])]


def _check_lengths(f: GGUF, vocabulary: Vocabulary) -> None:
    """Raise ValueError if a merge is longer than every token; the library would panic."""
    mergeable = ~np.isin(vocabulary.types, (CONTROL, UNKNOWN))
    longest = vocabulary.tokens.lengths[mergeable].max(initial=0)
    if f.get(MERGES, StringArray).lengths.max(initial=0) - len(" ") > longest:
        raise ValueError


def _pairs(merges: str) -> list[Pair]:
    """Return the merges in order: "Ġ t" means that Ġ and t become Ġt."""
    halves = iter(merges.replace("\0", " ").split(" "))
    next(halves, None)  # the text before the first merge, which is empty
    return list(zip(halves, halves, strict=True))


def _read_merges(f: GGUF) -> str:
    """Return the merges, each preceded by a NUL. Raises LocalInferError unless each consists of two parts."""
    merges = f.get(MERGES, StringArray)
    stored = nul_prefixed(merges)
    separators = stored[(stored == NUL) | (stored == SPACE)]
    if len(separators) != 2 * len(merges) or separators[::2].any() or not separators[1::2].all():
        invalid = (index for index, merge in enumerate(merges) if merge.count(b" ") != 1 or b"\0" in merge)
        index = next(invalid)
        shown = printable(repr(merges[index]), 80)
        raise f.error(MERGES, f"merge {index} is {shown}, not two parts with a space between")
    return decode_bytes(f, MERGES, stored)


def _without(pairs: list[Pair], forbidden: set[str]) -> list[Pair]:
    """Return the merges that neither use nor produce a forbidden token."""
    if not forbidden:
        return pairs
    return [(a, b) for a, b in pairs if not (a in forbidden or b in forbidden or a + b in forbidden)]
