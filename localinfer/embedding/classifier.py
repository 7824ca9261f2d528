"""The classification head of a reranker: a dense layer, an activation and a norm, then an output layer.

It processes one vector per text, so numpy is fast enough.
"""

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.gguf.dequantize import dequantize
from localinfer.gguf.reader import GGUF

Floats = NDArray[np.float32]
DENSE, OUTPUT = "cls", "cls.output"


class Classifier:
    """The classification head of a file. The constructor raises UnsupportedError if the file has none."""

    def __init__(self, f: GGUF, n: int, eps: float) -> None:
        self._weights = {name: dequantize(f.tensors[name]) for name in f.tensors if name.startswith(DENSE)}
        if not self._weights:
            raise f.error(
                "", "has no classification head for reranking; `localinfer embed` computes embeddings", UnsupportedError
            )
        architecture = f.get("general.architecture", str)
        if architecture == "bert" and f"{DENSE}.weight" not in self._weights:
            problem = "is missing: llama.cpp's converter drops BERT's pooler, without which scores are wrong"
            raise f.error(f"tensor {DENSE}.weight", f"{problem}; convert the checkpoint with `localinfer quantize`",
                          UnsupportedError)  # fmt: skip
        self._activation = gelu if architecture == "modern-bert" else np.tanh
        self._softmax = architecture == "qwen3"
        self._eps = eps
        for name in (DENSE, OUTPUT):
            self._check(f, name, n)

    def _check(self, f: GGUF, name: str, n: int) -> None:
        matrix, bias = self._weights.get(f"{name}.weight"), self._weights.get(f"{name}.bias")
        if matrix is not None and (matrix.ndim != 2 or matrix.shape[1] != n or (name == DENSE and len(matrix) != n)):
            raise f.error(f"tensor {name}.weight", f"has shape {list(matrix.shape)}")
        if bias is not None and (matrix is None or bias.shape != (len(matrix),)):
            raise LocalInferError(str(f.error(f"tensor {name}.bias", f"has shape {list(bias.shape)}")))

    def scores(self, x: Floats) -> Floats:
        """Return float32 scores (n_texts, n_labels) of pooled states (n_texts, n)."""
        if f"{DENSE}.weight" in self._weights:
            x = self._activation(self._linear(DENSE, x))
        if f"{DENSE}.norm.weight" in self._weights:
            x = x - x.mean(axis=1, keepdims=True)
            x = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + self._eps) * self._weights[f"{DENSE}.norm.weight"]
        if f"{OUTPUT}.weight" in self._weights:
            x = self._linear(OUTPUT, x)
        if self._softmax:
            e = np.exp(x - x.max(axis=1, keepdims=True))
            x = e / e.sum(axis=1, keepdims=True)
        scores: Floats = x.astype(np.float32)
        return scores

    def _linear(self, name: str, x: Floats) -> Floats:
        y: Floats = x @ self._weights[f"{name}.weight"].T + self._weights.get(f"{name}.bias", np.float32(0))
        return y


def gelu(x: Floats) -> Floats:
    """Return x * Phi(x), the exact GELU (Hendrycks and Gimpel, 2016)."""
    from math import erf

    y: Floats = (0.5 * x * (1 + np.vectorize(erf, otypes=[np.float64])(x / 2**0.5))).astype(np.float32)
    return y
