"""What matrices are multiplied with while a model reads, summed up over chunks of text."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quant.encoders.covariance import Covariance

Floats = NDArray[np.float32]


@dataclass(eq=False)
class Inputs:
    """Of weights that share an input: sums of squares, (n,), and of products, where they are wanted."""

    squares: NDArray[np.float64]
    covariance: Covariance | None
    count: int = 0
    _parts: list[Floats] = field(default_factory=list)  # of a chunk that is not complete

    @classmethod
    def of(cls, n: int, *, covariance: bool) -> "Inputs":
        """Of n columns, none of which was seen yet."""
        return cls(np.zeros(n), Covariance.empty(n) if covariance else None)

    def add(self, x: Floats, tokens: int, threads: int = 1) -> None:
        """Add the rows of x, (rows, n): all or some of those of a chunk of so many tokens, one after the other."""
        self.squares += np.square(x).sum(axis=0, dtype=np.float64)
        self.count += len(x)
        if self.covariance:
            self._parts.append(x if len(x) == tokens else x.copy())
            if sum(map(len, self._parts)) >= tokens:
                self.covariance.add(np.concatenate(self._parts) if len(self._parts) > 1 else x, threads)
                self._parts.clear()

    @property
    def means(self) -> Floats:
        """The mean square of each column's inputs, (1, n), as files of importance matrices have it."""
        return (self.squares.astype(np.float32) / np.float32(self.count))[None]
