"""BPE merging: the adjacent pair with the first merge in the file is merged, until no merge applies.

As in llama.cpp, merges combine texts, not tokens. A text that is no token is split into bytes after merging. Text never
becomes a control token.

Kernels do the work (`localinfer.kernels.bpe`), and other threads can run meanwhile. They find tokens and merges in a
copy of the file's strings, which stays valid if the file changes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from localinfer import paths
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF, StringArray
from localinfer.kernels.bpe_signatures import INDEX_STRINGS, KERNELS, MERGE_WORDS, NO_TOKEN, NOTHING
from localinfer.tokenizer.known_special_tokens import find_tokens
from localinfer.tokenizer.string_arrays import copy_texts, has_duplicates
from localinfer.tokenizer.vocabulary import CONTROL, TOKENS, UNKNOWN, Vocabulary, duplicate_token_error
from localinfer.tokenizer.word_splitter import WordSplitter
from quant.jit import loader
from quant.jit.kernel import Kernel
from quant.jit.kernel_call import KernelFunction, call_kernel

if TYPE_CHECKING:
    from tokenizers import pre_tokenizers

MERGES = "tokenizer.ggml.merges"
SPACE = 32
BATCH = 1 << 16  # characters that are merged at once
BYTES_PER_CHARACTER = 4  # at most, in UTF-8
SYMBOL_WORDS, HEAP_WORDS = 6, 4  # 8-byte words that the kernel needs for each symbol of a word


class BPEMerger:
    """Merges words into tokens.

    `byte_tokens` are the texts of the tokens for each byte of a text without a token. `alphabet` is how the vocabulary
    writes each byte, if its symbols are bytes and not characters. `unmerged` tells which words are not merged if they
    are tokens: see `localinfer.kernels.bpe_signatures`.

    Raises LocalInferError, naming the key, if the file's vocabulary is unusable.
    """

    def __init__(
        self,
        f: GGUF,
        vocabulary: Vocabulary,
        pre_tokenizer: "pre_tokenizers.PreTokenizer",
        byte_tokens: Sequence[str],
        *,
        alphabet: Sequence[str] = (),
        unmerged: int = NOTHING,
    ) -> None:
        self._f, self._unmerged = f, unmerged
        self._splitter = WordSplitter(pre_tokenizer)
        self._tokens, self._merges = read_tokens(f, vocabulary), read_merges(f)
        self._mergeable = ~np.isin(vocabulary.types, (CONTROL, UNKNOWN))
        known = find_tokens(vocabulary.tokens, [*filter(None, byte_tokens)])
        ids = [known.get(text, NO_TOKEN) for text in byte_tokens]
        self._byte_ids = np.array([id if id >= 0 and self._mergeable[id] else NO_TOKEN for id in ids], np.int32)
        self._alphabet = np.frombuffer(b"".join(letter.encode().ljust(2, b"\0") for letter in alphabet), np.uint8)

    def __call__(self, texts: Iterable[str]) -> list[int]:
        """Return the ids of texts, which are split into words first."""
        ids = list[int]()
        for batch in batches(texts):
            ids += self._merge(batch)
        return ids

    def _merge(self, texts: Sequence[str]) -> list[int]:
        spans = self._splitter.spans(texts)
        if not len(spans):
            return []
        content = np.frombuffer("".join(texts).encode(), np.uint8)
        longest = min(len(content), BYTES_PER_CHARACTER * int((spans[:, 1] - spans[:, 0]).max()))  # word, in bytes
        encoded = np.empty(2 * longest if len(self._alphabet) else 0, np.uint8)
        symbols, heap = np.empty(SYMBOL_WORDS * longest, np.int64), np.empty(HEAP_WORDS * longest, np.int64)
        ids, result = np.empty(2 * len(content), np.int32), np.zeros(1, np.int64)
        arguments = (
            self._token_table.record, self._merge_table.record, self._mergeable, self._byte_ids,
            self._alphabet if len(self._alphabet) else 0, self._unmerged, content, spans, len(spans), encoded, symbols,
            heap, ids, result,
        )  # fmt: skip
        words = [each if isinstance(each, int) else each.ctypes.data for each in arguments]
        call_kernel(compiled(MERGE_WORDS), words)
        found: list[int] = ids[: result[0]].tolist()
        return found

    @cached_property
    def _token_table(self) -> "StringTable":
        return StringTable(self._f, TOKENS, self._tokens, gap=0)

    @cached_property
    def _merge_table(self) -> "StringTable":
        return StringTable(self._f, MERGES, self._merges, gap=1)


class StringTable:
    """A hash table of strings for kernels (`localinfer.kernels.bpe.StringTable`). `gap` is 1 if these are merges.

    Raises LocalInferError, naming the key, if the strings were made to have equal hashes.
    """

    def __init__(self, f: GGUF, key: str, strings: StringArray, gap: int) -> None:
        count = len(strings)
        self._slots = np.zeros(1 << (3 * count // 2).bit_length(), np.int64)
        self._arrays = self._slots, strings.data, np.ascontiguousarray(strings.offsets), strings.lengths
        slots, *others = (each.ctypes.data for each in self._arrays)
        self.record = np.array([slots, len(self._slots) - 1, *others])
        result = np.zeros(1, np.int64)
        call_kernel(compiled(INDEX_STRINGS), (self.record.ctypes.data, count, gap, result.ctypes.data))
        if result[0] < count:
            raise f.error(key, "not a usable vocabulary: too many strings have the same hash")


@cache
def compiled(kernel: Kernel) -> Callable[[int, int, int, int], None]:
    """Return a kernel, all of which are loaded together."""
    addresses, _ = loader.load_kernels(KERNELS, paths.jit_dir())
    return KernelFunction(addresses[kernel])


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield texts in groups of more than BATCH characters."""
    batch, size = list[str](), 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size > BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def read_tokens(f: GGUF, vocabulary: Vocabulary) -> StringArray:
    """Return a copy of the tokens. Raises LocalInferError if one is not UTF-8, or if two have the same text."""
    tokens = copy_texts(f, TOKENS, vocabulary.tokens)
    if has_duplicates(tokens):
        raise duplicate_token_error(f, tokens)
    return tokens


def read_merges(f: GGUF) -> StringArray:
    """Return a copy of the merges. Raises LocalInferError unless each consists of two parts, in UTF-8."""
    merges = copy_texts(f, MERGES, f.get(MERGES, StringArray))
    spaces = np.flatnonzero(merges.data == SPACE)
    if (
        len(spaces) != len(merges)
        or (spaces < merges.offsets).any()
        or (spaces >= merges.offsets + merges.lengths).any()
        or np.count_nonzero(merges.data) != merges.lengths.sum()
    ):
        invalid = (index for index, merge in enumerate(merges) if merge.count(b" ") != 1 or b"\0" in merge)
        index = next(invalid)
        shown = printable(repr(merges[index]), 80)
        raise f.error(MERGES, f"merge {index} is {shown}, not two parts with a space between")
    return merges
