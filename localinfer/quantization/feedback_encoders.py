"""Encoder factories with error feedback, for matrices with a known input covariance: see `quant.encoders.feedback`."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray

from localinfer import paths
from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.quantization.quantize import NO_SCALES, EncoderFactory, RowEncoder, make_encoder_factory
from localinfer.quantization.rows import Matrix, get_decoder
from localinfer.quantization.tensor_scales import TensorScales
from quant.encoders.block_feedback import BlockFeedbackEncoder, is_codebook_type
from quant.encoders.cholesky import CholeskyFactor, factorize
from quant.encoders.covariance import Covariance
from quant.encoders.feedback import MIN_ROWS, FeedbackEncoder, feedback_kernel, is_scalar_type
from quant.jit import loader

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
FactorLookup = Callable[[str], CholeskyFactor | None]  # tensor name -> factor; None if the covariance is unknown


def compile_feedback(types: set[int], progress: loader.Progress | None = None) -> None:
    """Compile all kernels for error feedback in rows of these types."""
    loader.load_kernels(map(feedback_kernel, filter(is_scalar_type, types)), paths.jit_dir(), progress)


def supports_feedback(type_number: int) -> bool:
    """Return whether rows of this type can be encoded with error feedback."""
    return is_scalar_type(type_number) or is_codebook_type(type_number)


def make_feedback_factory(
    importance: Mapping[str, Floats], factor_for: FactorLookup, components: Mapping[str, Floats] | None = None
) -> EncoderFactory:
    """Return the encoder factory of --effort max: error feedback for matrices with a Cholesky factor.

    Other matrices are encoded as with effort "normal".
    """
    searching = make_encoder_factory("normal", importance, components)

    def make_encoder(matrix: Matrix) -> RowEncoder:
        factor = factor_for(matrix.tensor.name) if supports_feedback(matrix.type) else None
        if factor is None:
            return searching(matrix)
        if is_codebook_type(matrix.type):
            return BlockFeedbackEncoder(matrix.type, factor, get_decoder(matrix.type).rows, paths.jit_dir()).encode
        return FeedbackEncoder(matrix.type, factor, paths.jit_dir()).encode

    return EncoderFactory(make_encoder, MIN_ROWS)


def make_parts_factory(factories: Mapping[range | None, EncoderFactory], n_rows: int) -> EncoderFactory:
    """Return a factory of encoders for matrices of `n_rows` rows, each with the encoders of its parts.

    `factories` has those of some ranges of rows, and under None that of all other rows, if there are any.
    """

    def make_encoder(matrix: Matrix) -> RowEncoder:
        parts = [(rows or range(n_rows), factories[rows](matrix)) for rows in sorted(factories, key=bool)]

        def encode(x: Floats, out: Bytes) -> None:
            for rows, encode_rows in parts:
                encode_rows(x[rows.start : rows.stop], out[rows.start : rows.stop])

        return encode

    return EncoderFactory(make_encoder, n_rows)


def make_factor_lookup(
    covariances: Mapping[str, Covariance], threads: int = 1, scales: Mapping[str, TensorScales] = NO_SCALES
) -> FactorLookup:
    """Return a function that factorizes the covariance of a tensor, by name, or returns None if it is unknown.

    The factor is that of inputs divided by the `scales` of the columns.

    It caches the last factor, because tensors next to each other in a file often share it. It raises LocalInferError
    for a covariance that is not positive definite.
    """
    last: dict[Covariance, CholeskyFactor] = {}

    def triangle_for(name: str) -> CholeskyFactor | None:
        if name not in covariances:
            return None
        covariance = covariances[name]
        if covariance not in last:
            last.clear()
            last[covariance] = checked_factor(name, replace(covariance, products=covariance.products.copy()), threads)
            if name in scales:
                last[covariance].scale_inputs(np.reciprocal(scales[name].columns))
        return last[covariance]

    return triangle_for


def checked_factor(name: str, covariance: Covariance, threads: int) -> CholeskyFactor:
    """Factorize a covariance, whose products are overwritten. Raises LocalInferError if it is not positive definite."""
    try:
        return factorize(covariance, threads=threads)
    except LinAlgError as problem:
        raise LocalInferError(f"{printable(name)}: the covariance of its inputs: {problem}") from None
