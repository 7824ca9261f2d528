"""The classifier that a file may have behind its states: a matrix, an activation and a norm, then another matrix.

It sees one vector of each text, so that plain numpy is quick enough.
"""

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError, Unsupported
from localinfer.files.gguf import GGUF
from localinfer.files.weights import dequantize

Floats = NDArray[np.float32]
INNER, OUTER = "cls", "cls.output"


class Classifier:
    """Of a file; Unsupported where it has none."""

    def __init__(self, f: GGUF, n: int, eps: float) -> None:
        self._weights = {name: dequantize(f.tensors[name]) for name in f.tensors if name.startswith(INNER)}
        if not self._weights:
            raise f.error("", "has no classifier to rank texts with; `localinfer embed` compares them", Unsupported)
        architecture = f.get("general.architecture", str)
        self._activation = gelu if architecture == "modern-bert" else np.tanh
        self._softmax = architecture == "qwen3"
        self._eps = eps
        for name in (INNER, OUTER):
            self._check(f, name, n)

    def _check(self, f: GGUF, name: str, n: int) -> None:
        matrix, bias = self._weights.get(f"{name}.weight"), self._weights.get(f"{name}.bias")
        if matrix is not None and (matrix.ndim != 2 or matrix.shape[1] != n or (name == INNER and len(matrix) != n)):
            raise f.error(f"tensor {name}.weight", f"has shape {list(matrix.shape)}")
        if bias is not None and (matrix is None or bias.shape != (len(matrix),)):
            raise LocalInferError(str(f.error(f"tensor {name}.bias", f"has shape {list(bias.shape)}")))

    def scores(self, x: Floats) -> Floats:
        """(n_texts, n) -> (n_texts, n_labels)"""
        if f"{INNER}.weight" in self._weights:
            x = self._activation(self._product(INNER, x))
        if f"{INNER}.norm.weight" in self._weights:
            x = x - x.mean(axis=1, keepdims=True)
            x = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + self._eps) * self._weights[f"{INNER}.norm.weight"]
        if f"{OUTER}.weight" in self._weights:
            x = self._product(OUTER, x)
        if self._softmax:
            e = np.exp(x - x.max(axis=1, keepdims=True))
            x = e / e.sum(axis=1, keepdims=True)
        found: Floats = x.astype(np.float32)
        return found

    def _product(self, name: str, x: Floats) -> Floats:
        y: Floats = x @ self._weights[f"{name}.weight"].T + self._weights.get(f"{name}.bias", np.float32(0))
        return y


def gelu(x: Floats) -> Floats:
    """The exact one (Hendrycks and Gimpel, 2016)."""
    from math import erf

    y: Floats = (0.5 * x * (1 + np.vectorize(erf, otypes=[np.float64])(x / 2**0.5))).astype(np.float32)
    return y
