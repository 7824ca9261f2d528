"""Statistics of the inputs of weight matrices, accumulated over chunks of calibration text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.reader import Tensor
from quant.encoders.covariance import Covariance
from quant.encoders.principal_components import PrincipalComponents

Floats = NDArray[np.float32]


class WeightInputs(NamedTuple):
    """Weights that share an input, and rows of that input, float32 (rows, n_in).

    The rows belong to all tokens of a batch. For the weights of one expert they are the tokens routed to it, and
    `expert` is the expert's index. If only some rows of the weights have this input, `rows` says which.
    """

    weights: Sequence[Tensor]
    x: Floats
    expert: int | None = None
    rows: range | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the tensor names of the weights."""
        return tuple(weight.name for weight in self.weights)


@dataclass(eq=False)
class ExpertInputStatistics:
    """Input statistics of expert weights: sums of squares, float64 (n_expert, n), and the number of rows of each
    expert."""

    square_sums: NDArray[np.float64]
    counts: NDArray[np.int64]
    covariance: None = None  # not collected: each expert would need an (n, n) matrix

    @classmethod
    def empty(cls, n_expert: int, n: int) -> "ExpertInputStatistics":
        """Return statistics for `n_expert` experts without rows."""
        return cls(np.zeros((n_expert, n)), np.zeros(n_expert, np.int64))

    def add(self, expert: int, x: Floats) -> None:
        """Add the rows that one expert receives, (rows, n)."""
        self.square_sums[expert] += np.square(x).sum(axis=0, dtype=np.float64)
        self.counts[expert] += len(x)

    @property
    def mean_squares(self) -> Floats:
        """Return the mean square of each input column, float32 (n_expert, n). It is 1 for experts without rows."""
        seen = self.counts[:, None]
        means: Floats = np.where(seen > 0, self.square_sums / np.maximum(seen, 1), 1).astype(np.float32)
        return means


@dataclass(eq=False)
class InputStatistics:
    """Input statistics of weights that share an input.

    `square_sums` are the sums of squares, float64 (n,). `components` collects principal components and `covariance` the
    covariance matrix; both are optional.
    """

    square_sums: NDArray[np.float64]
    components: PrincipalComponents | None
    covariance: Covariance | None
    count: int = 0
    _pending_rows: list[Floats] = field(default_factory=list)  # rows of an incomplete chunk

    @classmethod
    def empty(cls, n: int, *, components: bool = False, covariance: bool = False) -> "InputStatistics":
        """Return statistics for `n` columns without rows."""
        return cls(
            np.zeros(n),
            PrincipalComponents.empty(n) if components else None,
            Covariance.empty(n) if covariance else None,
        )

    def add(self, x: Floats, tokens: int, threads: int = 1) -> None:
        """Add rows `x` of shape (rows, n): all or some of the rows of a chunk of `tokens` tokens, in order.

        The covariance is updated once all rows of a chunk have arrived.
        """
        self.square_sums += np.square(x).sum(axis=0, dtype=np.float64)
        self.count += len(x)
        if self.components and np.isfinite(self.square_sums).all():
            self.components.add(x)
        if self.covariance:
            self._pending_rows.append(x if len(x) == tokens else x.copy())
            if sum(map(len, self._pending_rows)) >= tokens:
                self.covariance.add(np.concatenate(self._pending_rows) if len(self._pending_rows) > 1 else x, threads)
                self._pending_rows.clear()

    @property
    def mean_squares(self) -> Floats:
        """Return the mean square of each input column, float32 (1, n), as importance matrix files store it."""
        return (self.square_sums.astype(np.float32) / np.float32(self.count))[None]
