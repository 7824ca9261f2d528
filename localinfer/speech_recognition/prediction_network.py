"""The two networks beside the encoder of a transducer, in float32: the prediction network, an LSTM that sees the tokens
so far, and the joint network, which scores the next token for a row of the encoder. Equal to those of transformers.

Each step multiplies matrices by one vector, so all weights are float32 arrays, whatever their types in the file.
"""

import numpy as np

from localinfer.gguf.dequantize import dequantize
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats
from localinfer.speech_recognition.recognition_file import RecognitionFile, head_shapes

LSTM = "decoder.prediction.dec_rnn.lstm"


def read_head(file: RecognitionFile) -> dict[str, Floats]:
    """Return the weights of the head by name, float32."""
    return {name: dequantize(file.f.tensors[name]).reshape(shape) for name, shape in head_shapes(file).items()}


class PredictionNetwork:
    """The LSTM, with its state. Biases of a layer are added once."""

    def __init__(self, weights: dict[str, Floats], n_layers: int) -> None:
        self._embedding = weights["decoder.prediction.embed.weight"]
        self._layers = [
            (
                weights[f"{LSTM}.weight_ih_l{number}"], weights[f"{LSTM}.weight_hh_l{number}"],
                weights[f"{LSTM}.bias_ih_l{number}"] + weights[f"{LSTM}.bias_hh_l{number}"],
            )
            for number in range(n_layers)
        ]  # fmt: skip
        n = self._embedding.shape[1]
        self._hidden, self._cells = np.zeros((2, n_layers, n), np.float32)

    def step(self, token: int) -> Floats:
        """Return the output for the next token, (n,), and change the state."""
        x = self._embedding[token]
        for number, (input_weights, hidden_weights, bias) in enumerate(self._layers):
            gates = input_weights @ x + hidden_weights @ self._hidden[number] + bias
            i, f, g, o = np.split(gates, 4)
            self._cells[number] = sigmoid(f) * self._cells[number] + sigmoid(i) * np.tanh(g)
            self._hidden[number] = sigmoid(o) * np.tanh(self._cells[number])
            x = self._hidden[number]
        output: Floats = x.copy()
        return output


class JointNetwork:
    """Scores the next token and its duration."""

    def __init__(self, weights: dict[str, Floats]) -> None:
        self._encoder, self._prediction, self._output = (
            (weights[f"joint.{name}.weight"], weights[f"joint.{name}.bias"]) for name in ("enc", "pred", "joint_net.2")
        )

    def project_rows(self, rows: Floats) -> Floats:
        """Return the projections of rows of the encoder, (rows, n)."""
        weight, bias = self._encoder
        projected: Floats = rows @ weight.T + bias
        return projected

    def project_prediction(self, predicted: Floats) -> Floats:
        """Return the projection of an output of the prediction network, (n,)."""
        weight, bias = self._prediction
        projected: Floats = weight @ predicted + bias
        return projected

    def logits(self, row: Floats, predicted: Floats) -> Floats:
        """Return the logits of the tokens, the blank, and the durations, for two projected vectors."""
        weight, bias = self._output
        logits: Floats = weight @ np.maximum(row + predicted, 0) + bias
        return logits


def sigmoid(x: Floats) -> Floats:
    """Return the logistic function, which does not overflow in this form."""
    result: Floats = np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * x))
    return result
