"""Encoders against the gguf package, and against what a block of any data must be."""

from concurrent.futures import ThreadPoolExecutor

import gguf
import numpy as np
import pytest
from encoding import GAUSSIAN, cruel_rows, decoded, encode, encoder
from kernels import NUMBERS

# Formats whose blocks are to be the gguf package's, byte for byte.
AS_GGUF = ["F32", "F16", "BF16", "Q8_0"]
ALL = AS_GGUF


@pytest.mark.parametrize("name", AS_GGUF)
@pytest.mark.parametrize("n", [32, 96, 256, 2048])
def test_blocks_are_those_of_the_gguf_package(name: str, n: int) -> None:
    rng = np.random.default_rng(n)
    x = np.concatenate([GAUSSIAN[:9, :n], rng.standard_t(2, (9, n)).astype(np.float32)])
    x = np.concatenate([x, np.zeros_like(x[:1]), np.rint(4 * x[:4]) / 4, 1e-7 * x[:2]])
    expected = gguf.quantize(x, gguf.GGMLQuantizationType(NUMBERS[name])).view(np.uint8).reshape(len(x), -1)
    np.testing.assert_array_equal(encode(name, x), expected)


@pytest.mark.parametrize("name", ALL)
def test_cruel_rows_become_finite_blocks(name: str) -> None:
    for x in cruel_rows():
        assert np.isfinite(decoded(name, encode(name, x))).all() or name in ("F16", "BF16")


@pytest.mark.parametrize("name", ALL)
def test_rows_are_encoded_by_themselves(name: str) -> None:
    """However they are cut into calls, and however many threads call at once."""
    x = GAUSSIAN[:64, :512]
    whole = encode(name, x)
    with ThreadPoolExecutor(4) as threads:
        parts = threads.map(lambda i: encode(name, x[i : i + 3]), range(0, 64, 3))
        np.testing.assert_array_equal(np.concatenate([*parts]), whole)


def test_what_is_not_a_matrix_of_blocks_is_refused() -> None:
    q8 = encoder("Q8_0")
    x, out = np.zeros((2, 64), np.float32), np.zeros((2, 68), np.uint8)
    for bad_x, importance, bad_out in [
        (x[:, :33], None, out),
        (x.astype(np.float64), None, out),
        (x[:, ::2], None, out[:, :34]),
        (x, None, out[:1]),
        (x, np.ones(32, np.float32), out),
    ]:
        with pytest.raises(ValueError, match=r"x|out|importance|blocks"):
            q8.rows(bad_x, importance, bad_out)
