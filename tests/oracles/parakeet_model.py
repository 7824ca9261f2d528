"""The heads of Parakeet in numpy, float64: the three kinds, and their greedy decoding.

Formulas are those of transformers/models/parakeet. `weights` are tensors by the names of transformers' checkpoints.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Weights = Mapping[str, Doubles]
Config = Mapping[str, Any]


class Step(NamedTuple):
    """A step of greedy decoding: the token, the frame that it belongs to, and by how much decoding advances."""

    token: int
    frame: int
    advance: int


def linear(w: Weights, name: str, x: Doubles) -> Doubles:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)


def pointwise(w: Weights, name: str, x: Doubles) -> Doubles:
    return x @ w[f"{name}.weight"][:, :, 0].T + w.get(f"{name}.bias", 0)


def sigmoid(x: Doubles) -> Doubles:
    return 1 / (1 + np.exp(-x))


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
