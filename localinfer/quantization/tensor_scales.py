"""Factors of the rows and columns of tensors, which scale pairs move from one tensor to another."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.source import SourceTensor

if TYPE_CHECKING:  # most commands need no graph
    from localinfer.graph.scale_pairs import ScalePair

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class TensorScales:
    """The factors of a matrix: of its rows, (rows,), and of its columns, (n,). A vector is a matrix of one row."""

    rows: Floats
    columns: Floats

    @classmethod
    def ones(cls, tensor: SourceTensor) -> "TensorScales":
        """Return factors that change nothing."""
        *rows, n = (1, *tensor.shape)
        return cls(np.ones(rows[-1], np.float32), np.ones(n, np.float32))

    def apply(self, x: Floats, first: int) -> None:
        """Multiply x, the rows from number `first` on, float32 (rows, n)."""
        x *= self.columns
        x *= self.rows[first : first + len(x), None]


def tensor_scales(
    tensors: Mapping[str, SourceTensor], factors: "Iterable[tuple[ScalePair, Floats]]"
) -> dict[str, TensorScales]:
    """Return the scales of each tensor that changes, by name, for scale pairs and their factors, float32
    (n_factors,)."""
    scales: dict[str, TensorScales] = {}
    for pair, s in factors:
        for name in sorted(pair.tensors):
            scales.setdefault(name, TensorScales.ones(tensors[name]))
        for name in pair.products:
            scales[name] = replace(scales[name], columns=scales[name].columns * s[pair.columns])
        for name, first, n in pair.divided:
            old, of = scales[name], "rows" if len(tensors[name].shape) > 1 else "columns"
            factors_of = getattr(old, of).copy()
            factors_of[first : first + n] /= s
            scales[name] = replace(old, **{of: factors_of})
    return scales
