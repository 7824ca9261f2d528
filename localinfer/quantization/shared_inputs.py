"""The inputs of matrices that share them: how rows are encoded for these inputs, and what an error in a row costs."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localinfer.quantization.feedback_encoders import make_feedback_factory
from localinfer.quantization.quantize import EncoderFactory
from quant.encoders.cholesky import CholeskyFactor
from quant.encoders.low_rank import split_covariance

Floats = NDArray[np.float32]


class SharedInputs:
    """The inputs of the matrices `names`: their mean squares, (matrices, n), and if known, their principal components,
    (n, r), and the factor of their covariance, which `divide` changes in place."""

    def __init__(
        self, names: Sequence[str], squares: Floats, components: Floats | None, factor: CholeskyFactor | None
    ) -> None:
        self.names, self.squares, self._components, self._factor = tuple(names), squares, components, factor
        self._scales = np.ones(squares.shape[-1], np.float32)
        self.encoder_factory = self.divide(self._scales)

    def divide(self, scales: Floats) -> EncoderFactory:
        """Divide the inputs by `scales`, (n,), instead of those of an earlier call, and return the encoders of matrices
        whose columns are multiplied by them, which are also the `encoder_factory`."""
        if self._factor and not np.array_equal(scales, self._scales):
            self._factor.scale_inputs(self._scales / scales)
        self._scales = scales
        importance = dict.fromkeys(self.names, divided_squares(self.squares, scales))
        components = None
        if self._components is not None:
            components = dict.fromkeys(self.names, divided_components(self._components, scales))
        self.encoder_factory = make_feedback_factory(importance, lambda _: self._factor, components)
        return self.encoder_factory

    def cost(self, errors: Floats) -> float:
        """Return the power of what errors, (rows, n), of matrices with scaled columns add to their outputs."""
        if self._factor:
            return self._factor.cost(errors)
        e = errors.astype(np.float64) / self._scales
        if self._components is None:
            return float((np.square(e) @ self.squares[0]).sum())
        d, u = split_covariance(self.squares[0], self._components)
        return float((np.square(e) @ d).sum() + np.square(e @ u).sum())


def divided_squares(squares: Floats, scales: Floats) -> Floats:
    """Return the mean squares, (matrices, n), of inputs divided by `scales`, (n,)."""
    return squares * np.reciprocal(np.square(scales))


def divided_components(components: Floats, scales: Floats) -> Floats:
    """Return the principal components, (n, r), of inputs divided by `scales`, (n,)."""
    return np.ascontiguousarray(components * np.reciprocal(scales)[:, None])
