"""Parakeet in numpy, float64: the encoder (FastConformer), the three kinds of heads and their greedy decoding.

Formulas are those of transformers/models/parakeet. `weights` are tensors by the names of transformers' checkpoints.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Weights = Mapping[str, Doubles]
Config = Mapping[str, Any]
EPSILON = 1e-5


class Step(NamedTuple):
    """A step of greedy decoding: the token, the frame that it belongs to, and by how much decoding advances."""

    token: int
    frame: int
    advance: int


def encode(weights: Weights, config: Config, features: Doubles) -> Doubles:
    """Return the output rows of the encoder, a row for 8 frames. `features` are (frames, bands)."""
    x = subsample(weights, features)
    if config["scale_input"]:
        x = x * config["hidden_size"] ** 0.5
    for number in range(config["num_hidden_layers"]):
        x = layer({name.removeprefix(f"encoder.layers.{number}."): each for name, each in weights.items()}, config, x)
    return x


def subsample(weights: Weights, features: Doubles) -> Doubles:
    """Three convolutions of stride 2 over time and frequency; the second and the third consist of two."""
    w, b = (weights[f"encoder.subsampling.layers.0.{kind}"] for kind in ("weight", "bias"))
    x = np.maximum(0, np.einsum("tfij,cij->ctf", squares(features), w[:, 0]) + b[:, None, None])
    for number in (2, 5):
        w, b = (weights[f"encoder.subsampling.layers.{number}.{kind}"] for kind in ("weight", "bias"))
        x = np.stack([np.einsum("tfij,ij->tf", squares(each), w[c, 0]) + b[c] for c, each in enumerate(x)])
        w, b = (weights[f"encoder.subsampling.layers.{number + 1}.{kind}"] for kind in ("weight", "bias"))
        x = np.maximum(0, np.einsum("ctf,dc->dtf", x, w[:, :, 0, 0]) + b[:, None, None])
    rows = x.transpose(1, 0, 2).reshape(x.shape[1], -1)
    return rows @ weights["encoder.subsampling.linear.weight"].T + weights["encoder.subsampling.linear.bias"]


def squares(x: Doubles) -> Doubles:
    """Return the 3 x 3 values around every second time and band, zeros outside."""
    return np.lib.stride_tricks.sliding_window_view(np.pad(x, 1), (3, 3))[::2, ::2]


def layer(w: Weights, config: Config, x: Doubles) -> Doubles:
    x = x + 0.5 * feed_forward(w, "feed_forward1", norm(w, "norm_feed_forward1", x))
    x = x + attend(w, config["num_attention_heads"], norm(w, "norm_self_att", x))
    x = x + convolve(w, norm(w, "norm_conv", x))
    x = x + 0.5 * feed_forward(w, "feed_forward2", norm(w, "norm_feed_forward2", x))
    return norm(w, "norm_out", x)


def feed_forward(w: Weights, name: str, x: Doubles) -> Doubles:
    return linear(w, f"{name}.linear2", silu(linear(w, f"{name}.linear1", x)))


def attend(w: Weights, heads: int, x: Doubles) -> Doubles:
    """Attention with relative positions, section 3.3 of arXiv 1901.02860."""
    count, n = x.shape
    q, k, v = (linear(w, f"self_attn.{name}_proj", x).reshape(count, heads, -1) for name in "qkv")
    distances = np.arange(count)[:, None] - np.arange(count)
    angles = distances[..., None] / 10_000 ** (np.arange(0, n, 2) / n)
    sinusoids = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(count, count, n)
    p = linear(w, "self_attn.relative_k_proj", sinusoids).reshape(count, count, heads, -1)
    scores = np.einsum("ihd,jhd->hij", q + w["self_attn.bias_u"], k)
    scores += np.einsum("ihd,ijhd->hij", q + w["self_attn.bias_v"], p)
    scores /= q.shape[2] ** 0.5
    e = np.exp(scores - scores.max(-1, keepdims=True))
    y = np.einsum("hij,jhd->ihd", e / e.sum(-1, keepdims=True), v)
    return linear(w, "self_attn.o_proj", y.reshape(count, -1))


def convolve(w: Weights, x: Doubles) -> Doubles:
    value, gate = np.split(pointwise(w, "conv.pointwise_conv1", x), 2, axis=1)
    h, taps = value * sigmoid(gate), w["conv.depthwise_conv.weight"][:, 0]
    half = taps.shape[1] // 2
    seen = np.lib.stride_tricks.sliding_window_view(np.pad(h, ((half, half), (0, 0))), taps.shape[1], 0)
    h = np.einsum("tck,ck->tc", seen, taps) + w.get("conv.depthwise_conv.bias", 0)
    mean, variance = (w[f"conv.norm.running_{kind}"] for kind in ("mean", "var"))
    h = (h - mean) / np.sqrt(variance + EPSILON) * w["conv.norm.weight"] + w["conv.norm.bias"]
    return pointwise(w, "conv.pointwise_conv2", silu(h))


def norm(w: Weights, name: str, x: Doubles) -> Doubles:
    centred = x - x.mean(1, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(1, keepdims=True) + EPSILON)
    return centred / deviation * w[f"{name}.weight"] + w[f"{name}.bias"]


def linear(w: Weights, name: str, x: Doubles) -> Doubles:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)


def pointwise(w: Weights, name: str, x: Doubles) -> Doubles:
    return x @ w[f"{name}.weight"][:, :, 0].T + w.get(f"{name}.bias", 0)


def sigmoid(x: Doubles) -> Doubles:
    return 1 / (1 + np.exp(-x))


def silu(x: Doubles) -> Doubles:
    return x * sigmoid(x)


# --- heads ---


def ctc_logits(weights: Weights, rows: Doubles) -> Doubles:
    return pointwise(weights, "ctc_head", rows)


def ctc_steps(weights: Weights, rows: Doubles) -> list[Step]:
    """Return the most probable token of each frame."""
    return [Step(int(logits.argmax()), frame, 1) for frame, logits in enumerate(ctc_logits(weights, rows))]


class PredictionNetwork:
    """The LSTM that sees the tokens so far (Hochreiter and Schmidhuber, 1997), and its output."""

    def __init__(self, weights: Weights, config: Config) -> None:
        self.w, self.n_layers = weights, config["num_decoder_layers"]
        zeros = np.zeros(config["decoder_hidden_size"])
        self.hidden, self.cell = [zeros] * self.n_layers, [zeros] * self.n_layers

    def step(self, token: int) -> Doubles:
        x = self.w["decoder.embedding.weight"][token]
        for number in range(self.n_layers):
            gates = sum(
                self.w[f"decoder.lstm.weight_{kind}_l{number}"] @ values + self.w[f"decoder.lstm.bias_{kind}_l{number}"]
                for kind, values in (("ih", x), ("hh", self.hidden[number]))
            )
            i, f, g, o = np.split(np.asarray(gates), 4)
            self.cell[number] = sigmoid(f) * self.cell[number] + sigmoid(i) * np.tanh(g)
            x = self.hidden[number] = sigmoid(o) * np.tanh(self.cell[number])
        return linear(self.w, "decoder.decoder_projector", x)


def joint_logits(weights: Weights, rows: Doubles, predicted: Doubles) -> Doubles:
    return linear(weights, "joint.head", np.maximum(0, linear(weights, "encoder_projector", rows) + predicted))


def transducer_steps(weights: Weights, config: Config, rows: Doubles) -> Iterator[Step]:
    """Yield the steps of greedy decoding, blanks included. A transducer without durations advances by a frame after a
    blank, and after `max_symbols_per_step` tokens; one with durations (arXiv 2304.06795) by the most probable one."""
    blank, durations = config["blank_token_id"], config.get("durations")
    network, frame, symbols = PredictionNetwork(weights, config), 0, 0
    predicted = network.step(blank)
    while frame < len(rows):
        logits = joint_logits(weights, rows[frame], predicted)
        token = int(logits[: config["vocab_size"]].argmax())
        advance = durations[int(logits[config["vocab_size"] :].argmax())] if durations else 0
        if token == blank:
            advance = max(1, advance)
        else:
            predicted = network.step(token)
        symbols = 0 if advance else symbols + 1
        if symbols == config["max_symbols_per_step"]:
            advance, symbols = 1, 0
        yield Step(token, frame, advance)
        frame += advance
