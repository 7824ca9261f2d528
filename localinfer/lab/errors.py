"""The quantization errors of a tensor in many types, on a sample of its rows: in the weights, and in the outputs.

    errors = TensorErrors(source, tensor, [Q4_0, Q6_K], encoder_factory, importance=None)
    errors.add_inputs(x, number=0)      # inputs of its first matrix, float32 (tokens, n)
    errors.of_outputs()[Q6_K]           # 0.0001: one ten-thousandth

All errors are relative powers. That of the weights is sum(|e|^2) / sum(|y|^2), over the weights y and their errors e.
That of the outputs is the mean over tokens of |e|^2 / max(|y|^2, median of |y|^2): in some layers a few tokens have
outputs a thousand times as large as all others (massive activations; Sun et al., 2024), and would decide alone. Before
inputs are known, the error of the outputs is that of uncorrelated inputs whose mean squares are the importance.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.source import Source, SourceTensor
from localinfer.quantization.noise import MAX_EXPERTS, evenly_spaced, quantized_rows, relative_noise, sample_rows
from localinfer.quantization.quantize import EncoderFactory
from localinfer.quantization.rows import Floats, load_bytes, matrices

Powers = NDArray[np.float64]


class TensorErrors:
    """The errors of ggml types, by number, in a sample of rows; of a tensor with several matrices, in some of them.

    `importance`, (matrices, n), is None if the columns do not differ. Raises LocalInferError for a value that is not
    finite.
    """

    def __init__(
        self,
        source: Source,
        tensor: SourceTensor,
        types: Sequence[int],
        encoder_factory: EncoderFactory,
        importance: Floats | None,
    ) -> None:
        self._types = types
        weights, outputs = np.zeros((2, 0, len(types)))
        self._samples: dict[int, _SampledMatrix] = {}
        data, all_matrices = load_bytes(source, tensor), list(matrices(tensor, tensor.type))
        for number in evenly_spaced(len(all_matrices), MAX_EXPERTS):
            x = sample_rows(source, all_matrices[number], data)
            w = None if importance is None else importance[number]
            decoded = [quantized_rows(x, replace(all_matrices[number], type=each), encoder_factory) for each in types]
            weights = np.vstack([weights, [relative_noise(x, y, None) for y in decoded]])
            outputs = np.vstack([outputs, [relative_noise(x, y, w) for y in decoded]])
            self._samples[number] = _SampledMatrix(x, decoded)
        self._weights, self._outputs = weights.mean(axis=0), outputs.mean(axis=0)

    def add_inputs(self, x: Floats, number: int) -> None:
        """Add inputs of the matrix `number`, (tokens, n)."""
        if sample := self._samples.get(number):
            sample.add_inputs(x)

    def of_weights(self) -> dict[int, float]:
        """Return the error of the weights in each type."""
        return dict(zip(self._types, self._weights.tolist(), strict=True))

    def of_outputs(self) -> dict[int, float]:
        """Return the error of the outputs in each type."""
        known = [sample.relative_errors() for sample in self._samples.values() if sample.n_tokens]
        return dict(zip(self._types, (np.mean(known, axis=0) if known else self._outputs).tolist(), strict=True))


class _SampledMatrix:
    """Rows of a matrix, their errors in each type, and the errors of their outputs, summed over tokens."""

    def __init__(self, x: Floats, decoded: Sequence[Floats]) -> None:
        self._rows, self._types = np.concatenate([x, *(y - x for y in decoded)]), len(decoded)
        self._errors: Powers = np.zeros(len(decoded))
        self.n_tokens = 0

    def add_inputs(self, x: Floats) -> None:
        outputs = np.square(self._rows @ x.T, dtype=np.float64).reshape(1 + self._types, -1, len(x)).sum(axis=1)
        signal = np.maximum(outputs[0], np.median(outputs[0]))
        if signal.min() > 0:
            self._errors += (outputs[1:] / signal).sum(axis=1)
            self.n_tokens += len(x)

    def relative_errors(self) -> Powers:
        errors: Powers = self._errors / self.n_tokens
        return errors
