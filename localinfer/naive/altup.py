"""Alternating updates (AltUp; Baykal et al., 2023): the residual streams of Gemma 3n."""

import numpy as np

from localinfer.graph.builder import AltUpStreams, Block, Builder
from localinfer.naive.formulas import Floats, match_rms
from localinfer.naive.weights import Model


class NumpyAltUp(AltUpStreams[Floats]):
    """Several residual streams, (tokens, streams, n)."""

    def __init__(self, g: Builder[Floats], model: Model, x: Floats, count: int) -> None:
        self.g, self.model, self.count = g, model, count
        self.streams = np.stack([x, *(match_rms(x @ matrix.T, x) for matrix in self.model["altup_proj"])], axis=1)
        self.predicted = self.streams

    def predict(self, blk: Block) -> Floats:
        weights = self.modalities(blk, self.streams[:, 0]) @ self.model[f"{blk}altup_predict_coef"].T
        self.predicted = self.streams + weights.reshape(-1, self.count, self.count) @ self.streams
        return self.predicted[:, 0].copy()

    def correct(self, blk: Block, y: Floats) -> Floats:
        weights = 1 + self.modalities(blk, y) @ self.model[f"{blk}altup_correct_coef"].T
        self.streams = self.predicted + weights[:, :, None] * (y - self.predicted[:, 0])[:, None]
        return self.streams[:, 0] * self.model[f"{blk}altup_correct_scale"]

    def add_to_inactive(self, branch: Floats) -> None:
        self.streams[:, 1:] += branch[:, None]

    def merge(self) -> Floats:
        first, matrices = self.streams[:, 0], self.model["altup_unembd_proj"]
        others = (match_rms(self.streams[:, 1 + number] @ m.T, first) for number, m in enumerate(matrices))
        return sum(others, first) / self.count

    def modalities(self, blk: Block, x: Floats) -> Floats:
        """Return the router's coefficients in [-1, 1], one per stream."""
        normed = self.g.norm(x, f"{blk}altup_router_norm")
        return np.tanh(self.g.matmul(normed, f"{blk}altup_router", self.count) / x.shape[1])
