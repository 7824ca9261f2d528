"""Split texts into words with a pre-tokenizer of the `tokenizers` library, without keeping other threads from running.

`pre_tokenize_str` would keep them waiting. `encode_batch` does not, and uses all cores; so the words are encoded, as
the only token of a vocabulary, and only where they are in the text is used.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenizers import pre_tokenizers

PART = 1 << 13  # characters
SHORT = 1 << 12  # characters that take about a millisecond: a thread per core is not worth starting


class WordSplitter:
    """Finds the words of texts."""

    def __init__(self, pre_tokenizer: "pre_tokenizers.PreTokenizer") -> None:
        from tokenizers import Tokenizer, models

        self._library = Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        self._library.pre_tokenizer = pre_tokenizer

    def spans(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the first and the last + 1 character of each word, in all texts one after another, (words, 2)."""
        starts = [0, *accumulate(map(len, texts))]
        if starts[-1] < SHORT:
            words = [self._library.encode(text, add_special_tokens=False).offsets for text in texts]
        else:
            encodings = self._library.encode_batch(texts, add_special_tokens=False)
            words = [encoding.offsets for encoding in encodings]
        counts = [len(each) for each in words]
        numbers = chain.from_iterable(chain.from_iterable(words))
        spans = np.fromiter(numbers, np.int64, 2 * sum(counts)).reshape(-1, 2)
        spans += np.repeat(starts[:-1], counts)[:, None]
        return spans


def cut(text: str, boundary: re.Pattern[str]) -> Iterator[str]:
    """Yield the parts of a long text. The words of the parts are those of the text if no word goes across a match of
    `boundary`, which has no characters, or depends on what is on its other side."""
    start = 0
    for begin in range(PART, len(text), PART):
        if found := boundary.search(text, begin, begin + PART):
            yield text[start : found.start()]
            start = found.start()
    yield text[start:]
