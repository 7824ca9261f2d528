"""Encoders that make up for errors, where it is known which inputs of a matrix go together: see
`quant.encoders.feedback`."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray

from localinfer import paths
from localinfer.errors import LocalInferError
from localinfer.quantizing.quantize import EncoderOf, RowEncoder, encoders
from localinfer.quantizing.rows import Matrix, decoder_of
from localinfer.text import printable
from quant.encoders.covariance import Covariance
from quant.encoders.feedback import FeedbackEncoder, feedback_kernel, rounds_columns
from quant.encoders.joint import JointFeedbackEncoder, is_joint
from quant.encoders.triangle import Triangle, triangle_of
from quant.jit import loader

Floats = NDArray[np.float32]
TriangleFor = Callable[[str], Triangle | None]  # of a tensor, by name, if the covariance of its inputs is known


def compile_feedback(types: set[int], progress: loader.Progress | None = None) -> None:
    """Have all kernels compiled that pass errors on in rows of these types."""
    loader.addresses(map(feedback_kernel, filter(rounds_columns, types)), paths.jit_dir(), progress)


def takes_feedback(type_number: int) -> bool:
    """Whether errors can be passed on in rows of this type."""
    return rounds_columns(type_number) or is_joint(type_number)


def feedback_encoders(
    importance: Mapping[str, Floats], triangle_for: TriangleFor, directions: Mapping[str, Floats] | None = None
) -> EncoderOf:
    """The encoders of --effort max: with feedback for the matrices that have a triangle; others as with less effort."""
    searching = encoders("normal", importance, directions)

    def encoder_of(matrix: Matrix) -> RowEncoder:
        triangle = triangle_for(matrix.tensor.name) if takes_feedback(matrix.type) else None
        if triangle is None:
            return searching(matrix)
        if is_joint(matrix.type):
            return JointFeedbackEncoder(matrix.type, triangle, decoder_of(matrix.type).rows, paths.jit_dir()).rows
        return FeedbackEncoder(matrix.type, triangle, paths.jit_dir()).rows

    return encoder_of


def triangles_of(covariances: Mapping[str, Covariance], threads: int = 1) -> TriangleFor:
    """Those of an importance matrix. The last one is kept: neighbours in a file often share it.

    The function raises LocalInferError where a covariance is none.
    """
    last: dict[Covariance, Triangle] = {}

    def triangle_for(name: str) -> Triangle | None:
        if name not in covariances:
            return None
        covariance = covariances[name]
        if covariance not in last:
            last.clear()
            last[covariance] = checked_triangle(name, replace(covariance, products=covariance.products.copy()), threads)
        return last[covariance]

    return triangle_for


def checked_triangle(name: str, covariance: Covariance, threads: int) -> Triangle:
    """The triangle in the place of a covariance, which is gone then. Raises LocalInferError where it is none."""
    try:
        return triangle_of(covariance, threads=threads)
    except LinAlgError as problem:
        raise LocalInferError(f"{printable(name)}: the covariance of its inputs: {problem}") from None
