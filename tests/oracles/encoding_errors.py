"""Sample weights for measuring encoders, and the errors of ggml's encoders on them.

data/encoding_errors.json holds those errors, as measured by tests/making/make_encoding_fixtures.py: by sample and
tensor type, the relative error without importance (or with ones, if that is less) and with that of `importance`.
"""

import json
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.dequantize import dequantize
from localinfer.gguf.reader import open_gguf

FILE = Path(__file__).parents[1] / "data" / "encoding_errors.json"
ROWS, TENSOR = 8, "blk.3.ffn_down.weight"

Floats = NDArray[np.float32]


def gaussian() -> Floats:
    """Return normally distributed weights, like those of an untrained model."""
    return 0.02 * np.random.default_rng(1).standard_normal((ROWS, 1280), np.float32)


def heavy_tailed() -> Floats:
    """Return weights with outliers: Student's t distribution with three degrees of freedom."""
    return (0.02 * np.random.default_rng(2).standard_t(3, (ROWS, 1280))).astype(np.float32)


def trained(path: Path) -> Floats:
    """Return the first rows of `TENSOR` of a model, decoded."""
    return dequantize(open_gguf(path).tensors[TENSOR])[:ROWS]


def importance(n: int) -> Floats:
    """Return an importance that is as uneven as that of real activations."""
    return np.random.default_rng(3).standard_exponential(n, np.float32) ** 2


def relative_error(x: Floats, y: Floats, weight: Floats | float = 1.0) -> float:
    """Return the root mean square of y - x, weighted by column, divided by that of x."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    return float(np.sqrt((weight * (y - x) ** 2).sum() / (weight * x**2).sum()))


@cache
def of_ggml() -> dict[str, dict[str, list[float]]]:
    """Return the errors without and with importance, by sample and tensor type."""
    errors: dict[str, dict[str, list[float]]] = json.loads(FILE.read_text())
    return errors
