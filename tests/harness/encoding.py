"""Encodes arrays as `localinfer quantize` does, with inputs shared by the tests of encoders."""

from collections.abc import Iterator
from functools import cache

import kernels
import numba  # noqa: F401  (kernels are compiled in this process then: starting one for each takes longer)
import numpy as np

from localinfer import paths
from quant.encoders.encoder import Encoder

MARGIN, UNTOUCHED = 64, 0xA5  # guard bytes on either side of the blocks, which must not change
GAUSSIAN = np.random.default_rng(0).standard_normal((64, 2048)).astype(np.float32)


@cache
def encoder(name: str, effort: str = "normal") -> Encoder:
    """Return the encoder for a tensor type."""
    return Encoder(kernels.NUMBERS[name], effort, paths.jit_dir())


def encode(
    name: str, x: kernels.Floats, importance: kernels.Floats | None = None, effort: str = "normal"
) -> kernels.Bytes:
    """Encode rows as blocks, and check that nothing is written outside of them."""
    x, chosen = np.ascontiguousarray(x), encoder(name, effort)
    buffer = np.full(len(x) * chosen.row_bytes(x.shape[1]) + 2 * MARGIN, UNTOUCHED, np.uint8)
    out = buffer[MARGIN:-MARGIN].reshape(len(x), -1)
    chosen.encode(x, importance, out)
    assert (buffer[:MARGIN] == UNTOUCHED).all()
    assert (buffer[-MARGIN:] == UNTOUCHED).all()
    return out


def decoded(name: str, rows: kernels.Bytes) -> kernels.Floats:
    """Decode blocks to rows with the gguf package."""
    return kernels.decode(name, rows)


def adversarial_rows() -> Iterator[kernels.Floats]:
    """Yield rows of 512 values that could make an encoder divide by zero or overflow."""
    x = GAUSSIAN[:1, :512]
    outlier, lonely, half_zero = x.copy(), np.zeros_like(x), x.copy()
    outlier[0, 7] = 1e30
    lonely[0, 300] = -3.0
    half_zero[0, :256] = 0
    for value in (0.0, -0.0, 1.0, -1.0, 3e38, -3e38, 1e-45, -1e-38):
        yield np.full_like(x, value)
    yield from (outlier, -outlier, lonely, -lonely, half_zero, x * 1e-42, x * 1e37, x * 1e-7, abs(x), -abs(x), x + 100)
