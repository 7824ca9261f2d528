"""Activations that several layers use, such as the streams of attention residuals (Kimi Team, 2026); several residual
streams: those of hyper-connections (Zhu et al., 2024), and of Gemma 3n, with alternating updates (AltUp; Baykal et al.,
2023)."""

import numpy as np

from localinfer.graph.builder import AltUpStreams, Block, Builder, CrossLayerOperations, HyperConnections
from localinfer.naive.formulas import Floats, attend_streams, match_rms, weigh_streams
from localinfer.naive.weights import Model


class NumpyCrossLayer(CrossLayerOperations[Floats]):
    """Activations that several layers use beside the residual stream, or instead of it: `has_streams`."""

    def __init__(self, g: Builder[Floats], model: Model, n_tokens: int) -> None:
        self.g, self.model, self.n_tokens, self.has_streams = g, model, n_tokens, False

    def buffer(self, n: int) -> Floats:
        return np.zeros((self.n_tokens, n), self.model.dtype)

    def copy(self, x: Floats, to: Floats, first: int = 0) -> None:
        to[:, first : first + x.shape[1]] = x

    def attend(self, x: Floats, earlier: Floats, count: int, name: str) -> Floats:
        rows = np.concatenate([earlier.reshape(len(x), -1, x.shape[1])[:, :count], x[:, None]], axis=1)
        y = attend_streams(rows, self.model[name], self.g.eps)
        self.g.point(y, name)
        return y

    def streams(self, x: Floats, count: int) -> Floats:
        self.has_streams = True
        return np.tile(x, count)

    def weigh_streams(self, logits: Floats, name: str, shape: HyperConnections) -> None:
        scales, counts = self.model[f"{name}_scale"], (shape.count, shape.count, shape.count**2)
        scales = np.repeat(scales, counts[: len(scales)])
        logits[:] = weigh_streams(logits * scales + self.model[f"{name}_base"], shape)

    def collapse(self, x: Floats, weights: Floats | None, count: int) -> Floats:
        if weights is None:
            return x.reshape(len(x), count, -1).mean(axis=1)
        return np.einsum("ts,tsn->tn", weights[:, :count], x.reshape(len(x), count, -1))

    def mix(self, x: Floats, y: Floats, weights: Floats, count: int) -> None:
        _, of_output, matrix = np.split(weights, [count, 2 * count], axis=1)
        streams = x.reshape(len(x), count, -1)
        if matrix.size:
            streams = np.einsum("tij,tin->tjn", matrix.reshape(len(x), count, count), streams)
        x[:] = (streams + of_output[:, :, None] * y[:, None]).reshape(x.shape)

    def altup(self, x: Floats, count: int) -> "NumpyAltUp":
        self.has_streams = True
        return NumpyAltUp(self.g, self.model, x, count)


class NumpyAltUp(AltUpStreams[Floats]):
    """Several residual streams, (tokens, streams, n)."""

    def __init__(self, g: Builder[Floats], model: Model, x: Floats, count: int) -> None:
        self.g, self.model, self.count = g, model, count
        others = (match_rms(self.model.expert("altup_proj", number, x), x) for number in range(count - 1))
        self.streams = np.stack([x, *others], axis=1)
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
        first, name = self.streams[:, 0], "altup_unembd_proj"
        others = (self.model.expert(name, number, self.streams[:, 1 + number]) for number in range(self.count - 1))
        return sum((match_rms(each, first) for each in others), first) / self.count

    def modalities(self, blk: Block, x: Floats) -> Floats:
        """Return the router's coefficients in [-1, 1], one per stream."""
        normed = self.g.norm(x, f"{blk}altup_router_norm")
        return np.tanh(self.g.matmul(normed, f"{blk}altup_router", self.count) / x.shape[1])
