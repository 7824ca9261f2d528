"""Encoders that make up for errors, where it is known which inputs of a matrix go together: see
`quant.encoders.feedback`."""

from collections.abc import Mapping

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray

from localinfer import paths
from localinfer.errors import LocalInferError
from localinfer.quantizing.quantize import EncoderOf, RowEncoder, encoders
from localinfer.quantizing.rows import Matrix
from localinfer.text import printable
from quant.encoders.feedback import FeedbackEncoder, feedback_kernel, takes_feedback, triangle_of
from quant.jit import loader

Floats = NDArray[np.float32]


def compile_feedback(types: set[int], progress: loader.Progress | None = None) -> None:
    """Have all kernels compiled that pass errors on in rows of these types."""
    loader.addresses(map(feedback_kernel, filter(takes_feedback, types)), paths.jit_dir(), progress)


def feedback_encoders(importance: Mapping[str, Floats], covariances: Mapping[str, Floats]) -> EncoderOf:
    """The encoders of --effort max: with feedback for the matrices whose covariance, (n, n), is known.

    Others are searched for with the most effort, and with their importance. Raises LocalInferError, when asked for an
    encoder, where a covariance is none.
    """
    searching = encoders("max", importance)

    def encoder_of(matrix: Matrix) -> RowEncoder:
        name = matrix.tensor.name
        if name not in covariances or not takes_feedback(matrix.type):
            return searching(matrix)
        try:
            triangle = triangle_of(covariances[name])
        except LinAlgError as problem:
            raise LocalInferError(f"{printable(name)}: its covariance in the importance matrix: {problem}") from None
        return FeedbackEncoder(matrix.type, triangle, paths.jit_dir()).rows

    return encoder_of
