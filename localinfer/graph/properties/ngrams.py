"""Embeddings of n-grams: hashes of the last tokens are rows of a large table."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.properties.hyperparameters import Hyperparameters

MAX_LENGTH, MAX_HEADS = 8, 64
MAX_ROW = 1 << 31
PREFIX = "ple"  # of the keys: per-layer embeddings


@dataclass(frozen=True, eq=False)
class Ngrams:
    """The n-grams from 2 to `longest` tokens, which have `heads` rows each: see `localinfer.kernels.ngrams`. There are
    `multipliers` for the tokens of an n-gram, and `sizes` and `offsets` of the rows of all heads. The token `end` ends
    a text, the token `media` stands for each media row."""

    longest: int
    heads: int
    end: int
    media: int
    multipliers: NDArray[np.int64]
    sizes: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @property
    def per_token(self) -> int:
        """The number of rows of a token."""
        return (self.longest - 1) * self.heads

    @property
    def n_rows(self) -> int:
        """The number of rows that the table must have."""
        return int((self.sizes + self.offsets).max())


def read_ngrams(hparams: Hyperparameters, n_vocab: int) -> Ngrams:
    """Return what the metadata says about n-grams of a vocabulary. Raises LocalInferError for numbers that kernels
    cannot compute with."""
    longest = hparams.count(f"{PREFIX}.ngram_size", minimum=2, maximum=MAX_LENGTH)
    heads = hparams.count(f"{PREFIX}.heads_per_ngram", maximum=MAX_HEADS)
    end = hparams.count(f"{PREFIX}.eos_token_id", minimum=0, maximum=n_vocab - 1)
    media = hparams.count(f"{PREFIX}.image_token_id", end, minimum=0, maximum=n_vocab - 1)
    count, largest = (longest - 1) * heads, np.iinfo(np.int64).max // n_vocab
    multipliers = read_integers(hparams, "layer_multipliers", longest, largest)
    sizes = read_integers(hparams, "head_vocab_sizes", count, MAX_ROW - 1)
    offsets = read_integers(hparams, "head_offsets", count, MAX_ROW - 1)
    if not sizes.all():
        raise hparams.error(f"{PREFIX}.head_vocab_sizes", "has a 0")
    ngrams = Ngrams(longest, heads, end, media, multipliers, sizes, offsets)
    if ngrams.n_rows > MAX_ROW:
        raise hparams.error(f"{PREFIX}.head_offsets", f"has rows up to {ngrams.n_rows}; at most {MAX_ROW} are possible")
    return ngrams


def read_integers(hparams: Hyperparameters, key: str, count: int, largest: int) -> NDArray[np.int64]:
    """Return an array of `count` integers from 0 to `largest`."""
    name = f"{PREFIX}.{key}"
    values = hparams.f.get(hparams.full_name(name), np.ndarray)
    if len(values) != count or values.dtype.kind not in "iu" or values.min() < 0 or values.max() > largest:
        raise hparams.error(name, f"must have {count} integers from 0 to {largest}")
    return values.astype(np.int64)
