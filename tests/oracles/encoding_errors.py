"""Weights to measure encoders with, and the errors that ggml's own have on them.

data/encoding_errors.json has those, as tests/making/make_encoding_fixtures.py measured them: by sample, by tensor type,
the relative error without importance (or with ones, where that is less) and with that of `importance`.
"""

import json
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localinfer.files.gguf import open_gguf
from localinfer.files.weights import dequantize

FILE = Path(__file__).parents[1] / "data" / "encoding_errors.json"
ROWS, TENSOR = 8, "blk.3.ffn_down.weight"

Floats = NDArray[np.float32]


def gaussian() -> Floats:
    """What weights look like that were not trained."""
    return 0.02 * np.random.default_rng(1).standard_normal((ROWS, 1280), np.float32)


def heavy_tailed() -> Floats:
    """With outliers: Student's t distribution with three degrees of freedom."""
    return (0.02 * np.random.default_rng(2).standard_t(3, (ROWS, 1280))).astype(np.float32)


def trained(path: Path) -> Floats:
    """The first rows of `TENSOR` of a model, decoded."""
    return dequantize(open_gguf(path).tensors[TENSOR])[:ROWS]


def importance(n: int) -> Floats:
    """As uneven as activations are."""
    return np.random.default_rng(3).standard_exponential(n, np.float32) ** 2


def relative_error(x: Floats, y: Floats, weight: Floats | float = 1.0) -> float:
    """The root of the mean square of y - x, weighted by column, over that of x."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    return float(np.sqrt((weight * (y - x) ** 2).sum() / (weight * x**2).sum()))


@cache
def of_ggml() -> dict[str, dict[str, list[float]]]:
    """By sample, by tensor type: the errors without and with importance."""
    errors: dict[str, dict[str, list[float]]] = json.loads(FILE.read_text())
    return errors
