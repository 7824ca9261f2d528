"""Operations on the heads of a row, which latent attention (DeepSeek-V2, 2024) and gated attention need."""

from collections.abc import Sequence

import numpy as np

from localinfer.graph.builder import HeadOperations
from localinfer.naive.formulas import ACTIVATIONS, Floats, split_heads
from localinfer.naive.weights import Model


class NumpyHeads(HeadOperations[Floats]):
    """Operations on the heads of a row."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def split(self, x: Floats, heads: int, *sizes: int) -> Sequence[Floats]:
        chunks = np.split(x.reshape(len(x), heads, -1), np.cumsum(sizes)[:-1], axis=2)
        return [chunk.reshape(len(x), -1) for chunk in chunks]

    def split_halves(self, x: Floats, heads: int) -> tuple[Floats, Floats]:
        chunks = x.reshape(len(x), heads, 2, -1)
        return chunks[:, :, 0].reshape(len(x), -1), chunks[:, :, 1].reshape(len(x), -1)

    def repeat(self, x: Floats, heads: int) -> Floats:
        return np.tile(x, (1, heads))

    def join(self, heads: int, *chunks: Floats) -> Floats:
        return np.concatenate([chunk.reshape(len(chunk), heads, -1) for chunk in chunks], axis=2).reshape(
            len(chunks[0]), -1
        )

    def gate(self, x: Floats, gate: Floats, heads: int, activation: str) -> None:
        x *= np.repeat(ACTIVATIONS[activation](gate), x.shape[1] // heads, axis=1)

    def dot(self, x: Floats, other: Floats, heads: int) -> Floats:
        return (x * other).reshape(len(x), heads, -1).sum(axis=2)

    def matmul(self, x: Floats, name: str, heads: int, n_out: int) -> Floats:
        chunks = (self.model.expert(name, head, chunk, n_out) for head, chunk in enumerate(split_heads(x, heads)))
        return np.stack(list(chunks), axis=1).reshape(len(x), heads * n_out)
