"""Passages of texts, and those that are most similar to a query by their embeddings."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Passage(NamedTuple):
    """A part of a file. `position` is the index of its first character in the text of the file."""

    file: str
    position: int
    text: str


def split_text(text: str, file: str, size: int, separator: str) -> list[Passage]:
    """Split a text at separators into passages of more than `size` characters; the last one also has the rest.

    A separator belongs to the passage that it ends. Passages without text are left out.
    """
    parts = [part + separator for part in text.split(separator)]
    parts[-1] = parts[-1].removesuffix(separator)
    passages: list[Passage] = []
    begin = end = 0
    for part in parts:
        end += len(part)
        if end - begin > size:
            passages.append(Passage(file, begin, text[begin:end]))
            begin = end
    if begin < len(text):
        if passages:
            begin = passages.pop().position
        passages.append(Passage(file, begin, text[begin:]))
    return [passage for passage in passages if passage.text.strip()]


def most_similar(query: NDArray[np.float32], embeddings: NDArray[np.float32], n: int) -> list[tuple[int, float]]:
    """Return the indices of the `n` embeddings with the largest cosine similarity to the query's, and the similarities.

    `query` is (n_embd,) and `embeddings` (count, n_embd), both with norm 1.
    """
    similarities = embeddings @ query
    order = np.argsort(-similarities, kind="stable")[:n]
    return [(int(index), float(similarities[index])) for index in order]
