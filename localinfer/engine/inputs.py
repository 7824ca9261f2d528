"""What matrices are multiplied with while a model reads, summed up over chunks of text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.files.gguf import Tensor
from quant.encoders.covariance import Covariance
from quant.encoders.directions import Directions

Floats = NDArray[np.float32]


class Given(NamedTuple):
    """Weights that share an input, and some rows of that, float32 (rows, n_in): of all tokens, or of those that are
    seen by one of many experts, by its number."""

    weights: Sequence[Tensor]
    x: Floats
    expert: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(weight.name for weight in self.weights)


@dataclass(eq=False)
class ExpertInputs:
    """Of experts' weights that share an input: sums of squares, (n_expert, n), and how many rows each of them saw."""

    squares: NDArray[np.float64]
    counts: NDArray[np.int64]
    covariance: None = None  # it would be as large for each expert

    @classmethod
    def of(cls, n_expert: int, n: int) -> "ExpertInputs":
        """Of experts that saw nothing yet."""
        return cls(np.zeros((n_expert, n)), np.zeros(n_expert, np.int64))

    def add(self, expert: int, x: Floats) -> None:
        """Add rows that one of them sees, (rows, n)."""
        self.squares[expert] += np.square(x).sum(axis=0, dtype=np.float64)
        self.counts[expert] += len(x)

    @property
    def means(self) -> Floats:
        """The mean square of each column's inputs, (n_expert, n); 1 for experts that saw nothing."""
        seen = self.counts[:, None]
        means: Floats = np.where(seen > 0, self.squares / np.maximum(seen, 1), 1).astype(np.float32)
        return means


@dataclass(eq=False)
class Inputs:
    """Of weights that share an input: sums of squares, (n,), and what is wanted of how they go together."""

    squares: NDArray[np.float64]
    directions: Directions | None
    covariance: Covariance | None
    count: int = 0
    _parts: list[Floats] = field(default_factory=list)  # of a chunk that is not complete

    @classmethod
    def of(cls, n: int, *, directions: bool = False, covariance: bool = False) -> "Inputs":
        """Of n columns, none of which was seen yet."""
        return cls(
            np.zeros(n), Directions.empty(n) if directions else None, Covariance.empty(n) if covariance else None
        )

    def add(self, x: Floats, tokens: int, threads: int = 1) -> None:
        """Add the rows of x, (rows, n): all or some of those of a chunk of so many tokens, one after the other."""
        self.squares += np.square(x).sum(axis=0, dtype=np.float64)
        self.count += len(x)
        if self.directions and np.isfinite(self.squares).all():
            self.directions.add(x)
        if self.covariance:
            self._parts.append(x if len(x) == tokens else x.copy())
            if sum(map(len, self._parts)) >= tokens:
                self.covariance.add(np.concatenate(self._parts) if len(self._parts) > 1 else x, threads)
                self._parts.clear()

    @property
    def means(self) -> Floats:
        """The mean square of each column's inputs, (1, n), as files of importance matrices have it."""
        return (self.squares.astype(np.float32) / np.float32(self.count))[None]
