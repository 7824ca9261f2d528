"""Random weights in any tensor type: random bits with scales that give values of a chosen size.

    random_rows(rng, "IQ2_XS", 16, 4096, 0.02)      # uint8, (16, 1184): rows of 16 blocks of 256 values each

The `gguf` package cannot encode most formats, and encoding is slow. Random blocks with valid scales are equally good
for testing or timing a kernel.
"""

from collections.abc import Callable
from functools import cache, partial

import gguf
import newest_types  # noqa: F401
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from quant import BLOCK_TYPES
from quant.ggml import TYPE_NUMBERS, TYPES

Bytes = NDArray[np.uint8]  # (n_blocks, bytes of a block)
Scales = NDArray[np.float64]  # (n_blocks,)


def random_rows(rng: np.random.Generator, type_name: str, n_rows: int, n: int, size: float) -> Bytes:
    """Return rows of n values, uint8 (n_rows, bytes of a row), whose standard deviation is about `size`.

    It varies by block, or by row if a row begins with a scale, from 0.6 to 1.4 times that.
    """
    kind = TYPES[TYPE_NUMBERS[type_name]]
    if not kind.header:
        return random_blocks(rng, type_name, n_rows * n // kind.elements, size).reshape(n_rows, -1)
    scales = size / spread(type_name) * rng.uniform(0.6, 1.4, n_rows)
    return scaled_rows(rng, type_name, n // kind.elements, scales)


def scaled_rows(rng: np.random.Generator, type_name: str, n_blocks: int, scales: Scales) -> Bytes:
    """Return rows of random blocks that begin with these scales."""
    kind = TYPES[TYPE_NUMBERS[type_name]]
    header = scales.astype({2: "<f2", 4: "<f4"}[kind.header]).view(np.uint8).reshape(-1, kind.header)
    return np.hstack([header, rng.integers(0, 256, (len(scales), n_blocks * kind.bytes), np.uint8)])


def random_blocks(rng: np.random.Generator, type_name: str, n_blocks: int, size: float) -> Bytes:
    """Return blocks whose values have a standard deviation of about `size`, varying by block from 0.6 to 1.4 times
    that.
    """
    n_elements, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    if type_name in FLOATS:
        values = size * rng.standard_normal((n_blocks, n_elements), np.float32)
        return FLOATS[type_name](values).view(np.uint8).reshape(n_blocks, n_bytes)
    blocks = rng.integers(0, 256, (n_blocks, n_bytes), np.uint8)
    SET_SCALE[type_name](blocks, size / spread(type_name) * rng.uniform(0.6, 1.4, n_blocks))
    return blocks


@cache
def spread(type_name: str) -> float:
    """Return the standard deviation of a format's values for random bits and scale 1."""
    number = GGMLQuantizationType[type_name]
    if TYPES[number].header:
        return float(gguf.dequantize(scaled_rows(np.random.default_rng(0), type_name, 1, np.ones(256)), number).std())
    blocks = np.random.default_rng(0).integers(0, 256, (256, GGML_QUANT_SIZES[number][1]), np.uint8)
    SET_SCALE[type_name](blocks, np.ones(256))
    return float(gguf.dequantize(blocks, number).std())


# -------------------------------------------------------------------------------------- scales of blocks


def set_halves(blocks: Bytes, d: Scales, offsets: tuple[tuple[int, float], ...]) -> None:
    """Write a float16 at each (byte offset, factor): the factor times d."""
    for offset, factor in offsets:
        blocks[:, offset : offset + 2] = (factor * d).astype("<f2").view(np.uint8).reshape(-1, 2)


def set_exponent(blocks: Bytes, d: Scales) -> None:
    """Write MXFP4's scale: a power of two in the first byte, with bias 127."""
    blocks[:, 0] = np.clip(127 + np.rint(np.log2(d)), 1, 254)


def set_e4m3(blocks: Bytes, d: Scales) -> None:
    """Write NVFP4's scales: d rounded to E4M3 in each of the first four bytes."""
    e, m = np.divmod(np.arange(127), 8)
    numbers = np.where(e, 2.0 ** (e - 7) * (1 + m / 8), m / 512)
    blocks[:, :4] = np.abs(numbers - np.ravel(d)[:, None]).argmin(axis=1)[:, None]


def set_nibbles(blocks: Bytes, d: Scales) -> None:
    """Write IQ1_M's scale: a float16, four bits of it in the top bits of each of the four 16-bit scale words."""
    words = blocks[:, 48:56].view("<u2")
    bits = d.astype("<f2").view("<u2")[:, None] >> np.array([0, 4, 8, 12], np.uint16)
    words[:] = words & 0x0FFF | bits << 12


# Scale and, if the format has one, minimum, chosen so that the mean of random values is about zero.
HALVES: dict[str, tuple[tuple[int, float], ...]] = {
    "Q4_0": ((0, 1),),
    "Q4_1": ((0, 1), (2, -7.5)),
    "Q5_0": ((0, 1),),
    "Q5_1": ((0, 1), (2, -15.5)),
    "Q8_0": ((0, 1),),
    "Q2_K": ((80, 1), (82, 1.5)),
    "Q3_K": ((108, 1),),
    "Q4_K": ((0, 1), (2, 7.5)),
    "Q5_K": ((0, 1), (2, 15.5)),
    "Q6_K": ((208, 1),),
    "IQ4_NL": ((0, 1),),
    "IQ4_XS": ((0, 1),),
    "IQ3_S": ((0, 1),),
    "IQ3_XXS": ((0, 1),),
    "IQ2_S": ((0, 1),),
    "IQ2_XS": ((0, 1),),
    "IQ2_XXS": ((0, 1),),
    "IQ1_S": ((0, 1),),
    "TQ1_0": ((52, 1),),
    "TQ2_0": ((64, 1),),
    "Q1_0": ((0, 1),),
    "Q2_0": ((0, 1),),
    "IQ2_K": ((0, 1),),
    "IQ3_K": ((0, 1),),
    "IQ4_K": ((0, 1),),
    "IQ5_K": ((0, 1),),
    "IQ6_K": ((0, 1),),
}
SET_SCALE: dict[str, Callable[[Bytes, Scales], None]] = {
    name: partial(set_halves, offsets=offsets) for name, offsets in HALVES.items()
} | {"MXFP4": set_exponent, "NVFP4": set_e4m3, "IQ1_M": set_nibbles}


def to_bfloat(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the upper 16 bits of each float32."""
    return (values.view(np.uint32) >> 16).astype("<u2")


FLOATS: dict[str, Callable[[NDArray[np.float32]], NDArray[np.generic]]] = {
    "F32": lambda values: values,
    "F16": lambda values: values.astype("<f2"),
    "BF16": to_bfloat,
}
NAMES = (*FLOATS, *BLOCK_TYPES)
