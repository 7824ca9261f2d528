"""The search for the factors of a scale pair: those with the least quantization error (AWQ; Lin et al., 2023).

    factors = search_factors(pair, matrices, threads)       # float32 (pair.n_factors,), or None

With the root mean square x_j of an input and that w_j of the weights of its column, relative to those of the others,
the factors are x_j^a w_j^-b. The exponents are searched on a grid. AWQ has a = alpha and b = 0, or b = 1 - alpha. A
candidate is tried on a sample of the rows: they are scaled, encoded as the file will have them, and decoded. Their
error is that of the products with the inputs of the calibration data, relative to these products, averaged over the
matrices. Factors are only accepted if this error falls, and that of no matrix rises.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.scale_pairs import ScalePair
from localinfer.quantization.noise import quantized_rows
from localinfer.quantization.rows import Matrix
from localinfer.quantization.shared_inputs import SharedInputs

INPUT_EXPONENTS = (0.05, 0.1, 0.2, 0.3)
WEIGHT_EXPONENTS = (0.25, 0.5, 0.75, 1.0)
MIN_GAIN = 0.01  # of the error, for factors to be accepted
MAX_LOSS = 0.01  # of the error of a single matrix
MAX_ROWS = 64  # of a matrix in the sample, at most
PART_ROWS = 32  # rows that a thread encodes at a time
SMALLEST = 1e-3  # root mean square of a column, relative to that of all columns: that of columns with less

Floats = NDArray[np.float32]
Logs = NDArray[np.float64]


class PairMatrix(NamedTuple):
    """A matrix of a scale pair: a sample of its rows, float32 (rows, n), the mean squares of its columns, (n,), and the
    inputs of these rows."""

    matrix: Matrix
    rows: Floats
    column_squares: Floats
    inputs: SharedInputs


def search_factors(pair: ScalePair, matrices: Sequence[PairMatrix], threads: int = 1) -> Floats | None:
    """Return the factors with the least error, or None if factors do not reduce it.

    The inputs of the matrices are left divided by the factors of their columns. The result does not depend on the
    number of threads.
    """
    inputs = list(dict.fromkeys(each.inputs for each in matrices))
    log_x = average([log_rms(each.squares.mean(axis=0), pair) for each in inputs])
    log_w = average([log_rms(each.column_squares, pair) for each in matrices])
    powers = [each.inputs.cost(each.rows) for each in matrices]
    with ThreadPoolExecutor(threads) as pool:

        def errors(exponents: tuple[float, float]) -> NDArray[np.float64]:
            return relative_errors(matrices, powers, factors_for(log_x, log_w, exponents)[pair.columns], pool)

        best, unscaled = (0.0, 0.0), errors((0.0, 0.0))
        least = unscaled.mean()
        for exponents in neighbours():
            tried = (exponents[0], best[1] if exponents[1] is None else exponents[1])
            found = errors(tried)
            if found.mean() < least and (found <= (1 + MAX_LOSS) * unscaled).all():
                best, least = tried, found.mean()
    accepted = least < (1 - MIN_GAIN) * unscaled.mean()
    factors = factors_for(log_x, log_w, best if accepted else (0.0, 0.0))
    for each in inputs:
        each.divide(factors[pair.columns])
    return factors if accepted else None


def neighbours() -> Iterator[tuple[float, float | None]]:
    """Yield the exponents to try: those of the weights, then those of the inputs with the best of these (None)."""
    yield from ((0.0, b) for b in WEIGHT_EXPONENTS)
    yield from ((a, None) for a in INPUT_EXPONENTS)


def factors_for(log_x: Logs, log_w: Logs, exponents: tuple[float, float]) -> Floats:
    """Return x^a w^-b, with a geometric mean of 1, for exponents a and b."""
    logs = exponents[0] * log_x - exponents[1] * log_w
    factors: Floats = np.exp(logs - logs.mean()).astype(np.float32)
    return factors


def log_rms(squares: NDArray[np.floating], pair: ScalePair) -> Logs:
    """Return the logarithm of the root mean square of each factor's columns, from the mean squares of all columns."""
    limited = np.maximum(squares.astype(np.float64), SMALLEST**2 * squares.mean(dtype=np.float64))
    logs = 0.5 * np.log(limited) if limited.all() else np.zeros(len(limited))
    sums = np.bincount(pair.columns, logs, minlength=pair.n_factors)
    means: Logs = sums / np.bincount(pair.columns, minlength=pair.n_factors)
    return means


def average(arrays: Sequence[Logs]) -> Logs:
    """Return the mean of arrays."""
    mean: Logs = np.mean(arrays, axis=0)
    return mean


def relative_errors(
    matrices: Sequence[PairMatrix], powers: Sequence[float], scales: Floats, pool: ThreadPoolExecutor
) -> NDArray[np.float64]:
    """Return the power of the error in the products of matrices whose columns are multiplied by `scales`, relative to
    the `powers` of these products."""
    factories = {inputs: inputs.divide(scales) for inputs in dict.fromkeys(each.inputs for each in matrices)}
    parts = [
        (number, each, each.rows[first : first + PART_ROWS])
        for number, each in enumerate(matrices)
        for first in range(0, len(each.rows), PART_ROWS)
    ]

    def error(part: tuple[int, PairMatrix, Floats]) -> float:
        _, each, rows = part
        x = np.ascontiguousarray(rows * scales)
        return each.inputs.cost(x - quantized_rows(x, each.matrix, factories[each.inputs]))

    errors = np.zeros(len(matrices))
    for (number, *_), found in zip(parts, pool.map(error, parts), strict=True):
        errors[number] += found / (powers[number] or 1.0)
    return errors
