"""The last steps of embeddings: Matryoshka dimensions and normalization."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UsageError

Floats = NDArray[np.float32]
INT16_SCALE = 32_760  # norm 0 scales the largest absolute value to this, for storage as int16 (as in llama.cpp)


@dataclass(frozen=True, kw_only=True)
class VectorOptions:
    """How vectors are cut and normalized. `dimensions` is the number of values that remain, 0 for all: models that were
    trained with Matryoshka representation learning (Kusupati et al., 2022) put the most important ones first.
    `normalize` is as in `normalize_vectors`.
    """

    dimensions: int = 0
    normalize: bool | float = True

    def check(self, length: int) -> None:
        """Raise UsageError if vectors of this length have fewer values than `dimensions`."""
        if not 0 <= self.dimensions <= length:
            limit = f"must be at most {length}, the length of the embeddings, or 0 for all"
            raise UsageError(f"dimensions (--dimensions): {limit}; not {self.dimensions}")

    def apply(self, vectors: Floats) -> Floats:
        """Return float32 vectors (n, dimensions), cut and then normalized."""
        return normalize_vectors(vectors[:, : self.dimensions or None], self.normalize)


def normalize_vectors(vectors: Floats, norm: bool | float) -> Floats:
    """Divide vectors by their p-norm, with llama.cpp's numbering (`--embd-normalize`); zero vectors stay unchanged.

    True means 2, False or a negative number no normalization, and 0 scaling by the largest absolute value.
    """
    number = {True: 2.0, False: -1.0}[norm] if isinstance(norm, bool) else float(norm)
    if number < 0:
        return vectors
    sizes = np.abs(vectors.astype(np.float64))
    if number == 0:
        lengths = sizes.max(axis=1, keepdims=True) / INT16_SCALE
    else:
        lengths = (sizes**number).sum(axis=1, keepdims=True) ** (1 / number)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
