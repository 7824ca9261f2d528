"""Encoders against the gguf package, and properties that blocks of any data must have."""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import gguf
import naive_encode
import numpy as np
import pytest
from encoding import GAUSSIAN, adversarial_rows, decoded, encode, encoder
from kernels import NUMBERS

from quant.encoders.encoder import EFFORTS
from quant.ggml import TYPES

# Formats whose blocks with effort "fast" must be bit-identical to the gguf package's.
MATCHING_GGUF = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]


class Searched(NamedTuple):
    """Properties of a format's groups: the number of columns and of codes, a code for zero or a min, the largest
    integer scale and min of a superblock, and the allowed error relative to scales and mins of full precision."""

    length: int
    levels: int
    zero: int = 0
    top: int = 0
    more: float = 1.06

    @property
    def below_zero(self) -> bool:
        """Whether there are mins and they cannot be positive."""
        return bool(self.top) and not self.zero


K_QUANTS = {
    "Q2_K": Searched(16, 4, top=15),
    "Q3_K": Searched(16, 8, zero=4, top=31),
    "Q4_K": Searched(32, 16, top=63),
    "Q5_K": Searched(32, 32, top=63, more=1.15),
    "Q6_K": Searched(16, 64, zero=32, top=127),
}
SEARCHED = K_QUANTS | {
    "Q4_0": Searched(32, 16, zero=8, more=1.01),
    "Q4_1": Searched(32, 16, more=1.01),
    "Q5_0": Searched(32, 32, zero=16, more=1.01),
    "Q5_1": Searched(32, 32, more=1.01),
}
ALL = [*MATCHING_GGUF, *K_QUANTS]
IMPORTANCE = np.random.default_rng(1).chisquare(1, 2048).astype(np.float32)


@pytest.mark.parametrize("name", MATCHING_GGUF)
@pytest.mark.parametrize("n", [32, 96, 256, 2048])
def test_blocks_match_gguf_package(name: str, n: int) -> None:
    rng = np.random.default_rng(n)
    x = np.concatenate([GAUSSIAN[:9, :n], rng.standard_t(2, (9, n)).astype(np.float32)])
    x = np.concatenate([x, np.zeros_like(x[:1]), np.rint(4 * x[:4]) / 4, 1e-7 * x[:2]])
    expected = gguf.quantize(x, gguf.GGMLQuantizationType(NUMBERS[name])).view(np.uint8).reshape(len(x), -1)
    np.testing.assert_array_equal(encode(name, x, effort="fast"), expected)


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("F16", "BF16")])
def test_extreme_rows_give_finite_blocks(name: str) -> None:
    none, spike = np.zeros(512, np.float32), np.full(512, 1e-30, np.float32)
    spike[5] = 1e30
    for x in adversarial_rows():
        for importance in (None, none, spike):
            assert np.isfinite(decoded(name, encode(name, x, importance))).all()


@pytest.mark.parametrize("name", ALL)
def test_rows_are_independent(name: str) -> None:
    """The result does not depend on how rows are split into calls, on concurrent calls, or on the neighbours in a
    vector."""
    for n in (512, 768, 608) if TYPES[NUMBERS[name]].elements == 32 else (512, 768):
        x = GAUSSIAN[:64, :n]
        for importance in (None, IMPORTANCE[:n]):
            whole = encode(name, x, importance)
            with ThreadPoolExecutor(4) as threads:
                chunks = threads.map(lambda i, x=x, w=importance: encode(name, x[i : i + 3], w), range(0, 64, 3))
                np.testing.assert_array_equal(np.concatenate([*chunks]), whole)


def test_wrong_arrays_are_rejected() -> None:
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
            q8.encode(bad_x, importance, bad_out)


def least_error(kind: Searched, x: naive_encode.Floats, w: naive_encode.Floats) -> float:
    """The weighted squared error of a group with a scale and a min of full precision."""
    scale, minimum = 0.0, 0.0
    if kind.zero:
        scale = naive_encode.symmetric(x, w, kind.zero, tried=19, less=kind.zero / 4, more=4.0)
    else:
        scale, minimum = naive_encode.affine(x, w, kind.levels, 5, 0.5, kind.below_zero)
    codes = naive_encode.nearest(x, scale, minimum, kind.levels, kind.zero)
    return naive_encode.error(x, w, codes, scale, minimum)


@pytest.mark.parametrize(("name", "weighted"), [(name, weighted) for name in SEARCHED for weighted in (False, True)])
def test_stored_scales_cost_little(name: str, weighted: bool) -> None:
    x, w = GAUSSIAN[:32, :768], IMPORTANCE[:768] if weighted else np.ones(768, np.float32)
    kind = SEARCHED[name]
    groups = x.astype(np.float64).reshape(-1, kind.length)
    weights = naive_encode.error_weights(
        x, w, kind.length, 256 if kind.top else 32, strength=0.5 if kind.below_zero else 1.0
    )
    free = sum(least_error(kind, *group) for group in zip(groups, weights.reshape(groups.shape), strict=True))
    actual = decoded(name, encode(name, x, w if weighted else None))
    assert 0.9 * free < (weights * (x - actual) ** 2).sum() < kind.more * free


def test_more_effort_reduces_error() -> None:
    x = GAUSSIAN[:8]
    fast, normal = (np.square(x - decoded("Q4_K", encode("Q4_K", x, None, effort))).sum() for effort in EFFORTS)
    assert normal < 0.993 * fast


@pytest.mark.parametrize("name", K_QUANTS)
def test_representable_rows_are_exact(name: str) -> None:
    """Integer codes with extreme scales and mins are encoded without loss."""
    length, levels, zero, top, _ = K_QUANTS[name]
    rng, groups = np.random.default_rng(2), 256 // length
    scales, mins = rng.integers(top // 2, top + 1, (2, 24, groups, 1))
    scales[:, 0], mins[:, 1] = -top - 1 if zero else top, top
    codes = rng.integers(0, levels, (24, groups, length)) - zero
    codes[..., 3], codes[..., 7] = -zero, levels - 1 - zero
    x = 2.0**-8 * scales * codes - (0 if zero else 2.0**-6 * mins)
    x = x.reshape(3, -1).astype(np.float32)
    np.testing.assert_array_equal(decoded(name, encode(name, x)), x)
