"""The dense layers after pooling that sentence-transformers calls 2_Dense and 3_Dense, and the projector of a reranker
of lists.

They process one vector per text, so numpy is fast enough.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UnsupportedError
from localinfer.gguf.dequantize import dequantize
from localinfer.gguf.pooling import DENSE_LAYERS
from localinfer.gguf.reader import GGUF

Floats = NDArray[np.float32]
ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "identity": np.positive, "tanh": np.tanh, "relu": lambda x: np.maximum(x, 0),
}  # fmt: skip


class DenseLayers:
    """The dense layers of a file, if it has any, for vectors of `n` values. `n_out` is the number of values after them.

    The constructor raises LocalInferError for tensors whose shapes do not fit, UnsupportedError for an activation that
    is not supported.
    """

    def __init__(self, f: GGUF, n: int) -> None:
        self._layers: list[tuple[Floats, Floats, str]] = []
        self.n_out = n
        architecture = f.get("general.architecture", str)
        for name in DENSE_LAYERS:
            if f"{name}.weight" in f.tensors:
                key = f"{architecture}.{name}_activation"
                activation = f.get(key, str, "identity")
                if activation not in ACTIVATIONS:
                    raise f.error(key, f"must be {' or '.join(ACTIVATIONS)}", UnsupportedError)
                self._layers.append((*self._read(f, name, self.n_out), activation))
                self.n_out = len(self._layers[-1][0])

    @staticmethod
    def _read(f: GGUF, name: str, n: int) -> tuple[Floats, Floats]:
        """Return the matrix (n_out, n) and the bias (n_out,), which is 0 if the file has none."""
        matrix = dequantize(f.tensors[f"{name}.weight"])
        if matrix.ndim != 2 or matrix.shape[1] != n:
            raise f.error(f"tensor {name}.weight", f"has shape {list(matrix.shape)}, not {n} columns")
        bias = dequantize(f.tensors[f"{name}.bias"]) if f"{name}.bias" in f.tensors else np.zeros(len(matrix))
        if bias.shape != (len(matrix),):
            raise f.error(f"tensor {name}.bias", f"has shape {list(bias.shape)}, not [{len(matrix)}]")
        return matrix.astype(np.float32), bias.astype(np.float32)

    def apply(self, x: Floats) -> Floats:
        """Return activation(matrix . x + bias) of each layer in turn: float32 (n_texts, n_out) of (n_texts, n)."""
        for matrix, bias, activation in self._layers:
            x = ACTIVATIONS[activation](x @ matrix.T + bias)
        return x
