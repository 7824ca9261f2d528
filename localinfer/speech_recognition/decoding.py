"""Greedy decoding: the tokens in rows of the encoder, which arrive in parts.

CTC (Graves et al., 2006): each row has a token or a blank; equal tokens of consecutive rows are one token.
RNN-T (Graves, 2012): a row has tokens until a blank comes.
TDT (Xu et al., 2023, arXiv 2304.06795): each token and each blank has a duration, after which decoding goes on.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from localinfer.multimodal.encoder_graph.encoder_model import IGNORE_DAMAGED_WEIGHTS
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats
from localinfer.speech_recognition.prediction_network import JointNetwork, PredictionNetwork
from localinfer.speech_recognition.recognition_file import CTC, RecognitionFile


class RecognizedToken(NamedTuple):
    """A token from row `start` to row `end` of the encoder; the latter does not belong to it."""

    id: int
    start: int
    end: int


class Decoding(Protocol):
    """Receives the rows of a sound, and yields tokens that are complete."""

    def feed(self, rows: Floats) -> Iterator[RecognizedToken]:
        """Yield the tokens that end in the next rows, (rows, n)."""

    def finish(self) -> Iterator[RecognizedToken]:
        """Yield what is left when there are no more rows."""


class CTCDecoding:
    """Takes the most probable token of each row."""

    def __init__(self, file: RecognitionFile, weights: dict[str, Floats]) -> None:
        self._weight, self._bias = (weights[f"decoder.decoder_layers.0.{kind}"] for kind in ("weight", "bias"))
        self._blank, self._row = file.blank, 0
        self._last = RecognizedToken(file.blank, 0, 0)

    def feed(self, rows: Floats) -> Iterator[RecognizedToken]:
        for id in self._most_probable(rows):
            if id != self._last.id:
                yield from self.finish()
                self._last = RecognizedToken(id, self._row, self._row)
            self._row += 1
            self._last = self._last._replace(end=self._row)

    @IGNORE_DAMAGED_WEIGHTS
    def _most_probable(self, rows: Floats) -> list[int]:
        """Return the most probable token of each row."""
        ids: list[int] = np.argmax(rows @ self._weight.T + self._bias, 1).tolist()
        return ids

    def finish(self) -> Iterator[RecognizedToken]:
        if self._last.id != self._blank:
            yield self._last


class TransducerDecoding:
    """Takes the most probable token, and the most probable duration if the model has durations."""

    def __init__(self, file: RecognitionFile, weights: dict[str, Floats]) -> None:
        self._network, self._joint = PredictionNetwork(weights, file.n_lstm_layers), JointNetwork(weights)
        self._blank, self._durations, self._max_symbols = file.blank, file.durations, file.max_symbols
        self._predicted = self._predict(file.blank)
        self._row = self._symbols = self._first = 0  # `_first`: the number of the next part's first row

    def feed(self, rows: Floats) -> Iterator[RecognizedToken]:
        projected = self._project(rows)
        while self._row - self._first < len(rows):
            token = self._step(projected[self._row - self._first])
            if token.id != self._blank:
                yield token
        self._first += len(rows)

    def finish(self) -> Iterator[RecognizedToken]:
        yield from ()

    @IGNORE_DAMAGED_WEIGHTS
    def _predict(self, token: int) -> Floats:
        """Return the projected output of the prediction network for the next token, (n,)."""
        return self._joint.project_prediction(self._network.step(token))

    @IGNORE_DAMAGED_WEIGHTS
    def _project(self, rows: Floats) -> Floats:
        """Return the projections of rows of the encoder, (rows, n)."""
        return self._joint.project_rows(rows)

    @IGNORE_DAMAGED_WEIGHTS
    def _step(self, row: Floats) -> RecognizedToken:
        """Return the next token, which may be a blank, and advance. A token without a duration lasts one row."""
        logits, start = self._joint.logits(row, self._predicted), self._row
        id = int(np.argmax(logits[: self._blank + 1]))
        duration = self._durations[int(np.argmax(logits[self._blank + 1 :]))] if self._durations else 0
        if id == self._blank:
            duration = max(1, duration)
        else:
            self._predicted = self._predict(id)
        end = start + (duration if self._durations else 1)
        self._symbols = 0 if duration else self._symbols + 1
        if self._symbols == self._max_symbols:
            duration, self._symbols = 1, 0
        self._row += duration
        return RecognizedToken(id, start, end)


def make_decoding(file: RecognitionFile, weights: dict[str, Floats]) -> Decoding:
    """Return the decoding of a sound, for weights that `read_head` returns."""
    return CTCDecoding(file, weights) if file.head == CTC else TransducerDecoding(file, weights)

