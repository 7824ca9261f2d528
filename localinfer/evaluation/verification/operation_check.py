"""The check of an operation: its error, beside what rounding allows.

Kernels compute with 32-bit floats, and add up in another order than numpy. The same operation is therefore computed in
numpy with 32-bit floats, too: its difference from float64 is what 32-bit floats cost here, for these values. A sum of n
numbers has an error of at most n units in the last place and typically of sqrt(n), whatever the order (Higham, Accuracy
and Stability of Numerical Algorithms, 2002, sections 4.2 and 4.5); `MARGIN` allows for it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer.naive.formulas import Floats
from quant.matmul.layout import MAX_QUANT

MARGIN = 16.0  # times the error of numpy's 32-bit floats
TIES = 3.0  # times the effect of all ties that are rounded to the other side
TANH = 2e-7
LAST_BITS = 2.0**-20  # of a row's largest value: eight units in the last place
# The root mean square error of 32 rounded values, relative to the largest one, by passes: half a step, as the scale is
# a least-squares fit. For one pass, the largest integer may be 125.
ROUNDED = {1: 0.5 / 125 * 1.001, 2: 0.5 / MAX_QUANT[2] * 1.001}


@dataclass(frozen=True)
class OperationCheck:
    """What was found for an operation.

    `error` is the difference from the reference, and `allowed` its limit, for the value where their ratio is largest.
    Both are relative to the largest value of its row. `type` is the tensor type of a matrix, `shape` the result's.
    """

    name: str
    operation: str
    type: str
    shape: tuple[int, ...]
    error: float
    allowed: float

    @property
    def is_ok(self) -> bool:
        """Whether the error is allowed."""
        return self.error <= self.allowed

    @property
    def ratio(self) -> float:
        """The error relative to what is allowed."""
        return self.error / self.allowed if self.allowed else float("inf") if self.error else 0.0


def compare(
    label: tuple[str, str, str], expected: Floats, actual: NDArray[Any], allowed: Floats | float
) -> OperationCheck:
    """Return the check of an operation, of which `label` is the name, the kind and the tensor type. `allowed` is the
    largest error of each value, or of all."""
    shape = actual.shape
    expected = expected.reshape(shape)
    allowed = np.broadcast_to(np.reshape(allowed, shape) if np.ndim(allowed) else allowed, shape)
    with np.errstate(all="ignore"):
        error = np.abs(actual.astype(np.float64) - expected)
        error = np.where(np.isnan(error), np.where(np.isnan(actual) & np.isnan(expected), 0, np.inf), error)
        ratio = np.where(error > 0, error / np.maximum(allowed, np.finfo(np.float64).tiny), 0)
    worst = np.unravel_index(ratio.argmax(), shape)
    row = np.abs(expected[worst[:-1]]).max()
    size = float(row) if np.isfinite(row) and row > 0 else 1.0
    return OperationCheck(*label, shape, float(error[worst]) / size, float(allowed[worst]) / size)


def check_rounding(name: str, x: Floats, rounded: NDArray[np.float64], passes: int) -> OperationCheck:
    """Return the check of the input x of a matrix, which kernels have rounded to integers: 32 share a scale."""
    groups, errors = (each.reshape(len(x), -1, 32) for each in (x, rounded - x))
    peaks = np.maximum(np.abs(groups).max(axis=2), np.finfo(np.float32).tiny)
    relative = np.sqrt((errors**2).mean(axis=2)) / peaks
    return compare((f"{name}.quantized", "quantize", ""), np.zeros_like(relative), relative, ROUNDED[passes])


def tolerance(values: Floats, single: Floats, flipped: Floats) -> Floats:
    """Return the largest error that is allowed, for each value of a row the same: (..., 1) for values (..., n)."""

    def largest(x: Floats) -> Floats:
        magnitudes: Floats = np.abs(x).max(axis=-1, keepdims=True, initial=0.0)
        return magnitudes

    with np.errstate(all="ignore"):
        size, cost = largest(values), largest(single.astype(np.float64) - values)
        typical = float(np.median(cost / np.where(size > 0, size, 1))) * size
        limit = MARGIN * np.maximum(cost, typical) + TIES * largest(flipped - values) + LAST_BITS * size
    allowed: Floats = np.broadcast_to(np.where(np.isnan(limit), np.inf, limit), values.shape)
    return allowed
