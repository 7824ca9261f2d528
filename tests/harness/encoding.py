"""Encodes arrays as `localinfer quantize` does, and what the tests of encoders share."""

from collections.abc import Iterator
from functools import cache

import kernels
import numba  # noqa: F401  (kernels are compiled in this process then: starting one for each takes longer)
import numpy as np

from localinfer import paths
from quant.encoders.encode import Encoder

MARGIN, UNTOUCHED = 64, 0xA5  # bytes on either side of the blocks, which nobody may write to
GAUSSIAN = np.random.default_rng(0).standard_normal((64, 2048)).astype(np.float32)


@cache
def encoder(name: str, effort: str = "normal") -> Encoder:
    """The encoder of a tensor type."""
    return Encoder(kernels.NUMBERS[name], effort, paths.jit_dir())


def encode(
    name: str, x: kernels.Floats, importance: kernels.Floats | None = None, effort: str = "normal"
) -> kernels.Bytes:
    """Rows as blocks, and nothing beside them."""
    x, chosen = np.ascontiguousarray(x), encoder(name, effort)
    room = np.full(len(x) * chosen.row_bytes(x.shape[1]) + 2 * MARGIN, UNTOUCHED, np.uint8)
    out = room[MARGIN:-MARGIN].reshape(len(x), -1)
    chosen.rows(x, importance, out)
    assert (room[:MARGIN] == UNTOUCHED).all()
    assert (room[-MARGIN:] == UNTOUCHED).all()
    return out


def decoded(name: str, rows: kernels.Bytes) -> kernels.Floats:
    """Blocks as rows, by the gguf package."""
    return kernels.decoded(name, rows)


def cruel_rows() -> Iterator[kernels.Floats]:
    """Rows of 512 that tempt an encoder to divide by zero or to overflow."""
    x = GAUSSIAN[:1, :512]
    outlier, lonely, half_zero = x.copy(), np.zeros_like(x), x.copy()
    outlier[0, 7] = 1e30
    lonely[0, 300] = -3.0
    half_zero[0, :256] = 0
    for value in (0.0, -0.0, 1.0, -1.0, 3e38, -3e38, 1e-45, -1e-38):
        yield np.full_like(x, value)
    yield from (outlier, -outlier, lonely, -lonely, half_zero, x * 1e-42, x * 1e37, x * 1e-7, abs(x), -abs(x), x + 100)
