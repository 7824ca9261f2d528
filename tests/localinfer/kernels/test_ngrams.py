"""Rows of n-grams, compared with Python's integers: several sequences, texts that end, any split into batches."""

import kernels
import numpy as np
import pytest
from numpy.typing import NDArray

from localinfer.graph.properties.ngrams import Ngrams
from localinfer.naive.formulas import ngram_rows

END, VOCABULARY = 7, 50
Ids = NDArray[np.int32]


def make_ngrams(longest: int, heads: int) -> Ngrams:
    rng, count = np.random.default_rng(longest), (longest - 1) * heads
    sizes = rng.integers(30, 90, count)
    multipliers = rng.integers(1 << 40, np.iinfo(np.int64).max // VOCABULARY, longest)
    return Ngrams(longest, heads, END, END, multipliers, sizes, np.cumsum(sizes) - sizes)


def hashed(ngrams: Ngrams, texts: list[Ids], tail: Ids) -> NDArray[np.int32]:
    """Return the rows of the tokens of a batch with a part of each text, which updates the tail."""
    tokens = sum(map(len, texts))
    rows = np.full((tokens, ngrams.per_token), -1, np.int32)
    segments = [number for slot, ids in enumerate(texts) for number in (len(ids), slot, slot)]
    arguments = {
        "tokens": np.array([tokens]), "ids": np.concatenate(texts), "multipliers": ngrams.multipliers,
        "sizes": ngrams.sizes, "offsets": ngrams.offsets, "longest": ngrams.longest, "heads": ngrams.heads,
        "end": ngrams.end, "segments": np.array([len(texts), *segments]), "tail": tail, "y": rows,
    }  # fmt: skip
    kernels.run("localinfer.kernels.ngrams:hash_ngrams", arguments, threads=1)
    return rows


@pytest.mark.parametrize(("longest", "heads"), [(2, 1), (3, 2), (5, 3)])
def test_rows_are_those_of_exact_integers(longest: int, heads: int) -> None:
    ngrams, rng = make_ngrams(longest, heads), np.random.default_rng(heads)
    texts = [rng.integers(0, VOCABULARY, n).astype(np.int32) for n in (17, 12)]
    for ids in texts:
        ids[rng.integers(0, len(ids), 4)] = END
    tail = np.zeros((len(texts), longest - 1), np.int32)
    whole = hashed(ngrams, texts, tail)
    expected = np.concatenate([ngram_rows(ids.astype(np.int64), ngrams) for ids in texts])
    np.testing.assert_array_equal(whole, expected)

    tail[:] = 0
    parts = [hashed(ngrams, [ids[a:b] for ids in texts], tail) for a, b in ((0, 1), (1, 3), (3, 9), (9, 12))]
    firsts, seconds = (np.concatenate([np.split(part, 2)[number] for part in parts]) for number in (0, 1))
    np.testing.assert_array_equal(np.concatenate([firsts, seconds]), np.concatenate([whole[:12], whole[17:29]]))
