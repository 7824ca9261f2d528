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
SOFTMAX_ARCHITECTURES = ("qwen3", "qwen3vl")  # their labels are the answers "yes" and "no", as in llama.cpp


class Classifier:
    """The classification head of a file. The constructor raises UnsupportedError if the file has none.

    `gives_probabilities` says whether scores are probabilities: those of the labels, which sum to 1.
    """

    def __init__(self, f: GGUF, n: int, eps: float) -> None:
        self._file = f
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
        self.gives_probabilities = architecture in SOFTMAX_ARCHITECTURES
        self._eps = eps
        for name in (DENSE, OUTPUT):
            self._check(f, name, n)

    def _check(self, f: GGUF, name: str, n: int) -> None:
        matrix, bias = self._weights.get(f"{name}.weight"), self._weights.get(f"{name}.bias")
        if matrix is not None and (matrix.ndim != 2 or matrix.shape[1] != n or (name == DENSE and len(matrix) != n)):
            raise f.error(f"tensor {name}.weight", f"has shape {list(matrix.shape)}")
        if bias is not None and (matrix is None or bias.shape != (len(matrix),)):
            raise LocalInferError(str(f.error(f"tensor {name}.bias", f"has shape {list(bias.shape)}")))

    def rank_scores(self, x: Floats, *, sigmoid: bool) -> Floats:
        """Return float32 scores (n_texts,) of pooled states (n_texts, n), mapped to 0..1 by `sigmoid`: probabilities
        stay as they are.

        Raises UnsupportedError if the labels are classes, none of which is relevance.
        """
        scores = self.scores(x)
        if scores.shape[1] > 1 and not self.gives_probabilities:
            what = f"has a classifier of {scores.shape[1]} labels: not a reranker; pooling rank returns all of them"
            raise self._file.error("", what, UnsupportedError)
        relevance = scores[:, 0]
        return logistic(relevance) if sigmoid and not self.gives_probabilities else relevance

    def scores(self, x: Floats) -> Floats:
        """Return float32 scores (n_texts, n_labels) of pooled states (n_texts, n)."""
        if f"{DENSE}.weight" in self._weights:
            x = self._activation(self._linear(DENSE, x))
        if f"{DENSE}.norm.weight" in self._weights:
            x = x - x.mean(axis=1, keepdims=True)
            x = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + self._eps) * self._weights[f"{DENSE}.norm.weight"]
        if f"{OUTPUT}.weight" in self._weights:
            x = self._linear(OUTPUT, x)
        if self.gives_probabilities:
            e = np.exp(x - x.max(axis=1, keepdims=True))
            x = e / e.sum(axis=1, keepdims=True)
        scores: Floats = x.astype(np.float32)
        return scores

    def _linear(self, name: str, x: Floats) -> Floats:
        y: Floats = x @ self._weights[f"{name}.weight"].T + self._weights.get(f"{name}.bias", np.float32(0))
        return y


def logistic(x: Floats) -> Floats:
    """Return 1 / (1 + e^-x), without overflow."""
    y: Floats = (0.5 * (1 + np.tanh(0.5 * x.astype(np.float64)))).astype(np.float32)
    return y


def gelu(x: Floats) -> Floats:
    """Return x * Phi(x), the exact GELU (Hendrycks and Gimpel, 2016)."""
    from math import erf

    y: Floats = (0.5 * x * (1 + np.vectorize(erf, otypes=[np.float64])(x / 2**0.5))).astype(np.float32)
    return y
