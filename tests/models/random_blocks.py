"""Random weights in any tensor type: any bits, behind scales that give values of a chosen size.

    random_blocks(rng, "IQ2_XS", 4096, 0.02)        # uint8, (4096, 74): 4096 blocks of 256 values each

Most formats cannot be encoded by the `gguf` package, and encoding is slow; blocks of random bytes are as good to
test or to time a kernel with, once their scales are sane. Facts of the formats' layouts only, no kernel is known.
"""

from collections.abc import Callable
from functools import cache, partial

import gguf
import newest_types  # noqa: F401
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]  # (n_blocks, bytes of a block)
Scales = NDArray[np.float64]  # (n_blocks,)


def random_blocks(rng: np.random.Generator, type_name: str, n_blocks: int, size: float) -> Bytes:
    """Blocks whose values have a standard deviation of about `size`, in each block of 0.6 to 1.4 times that."""
    n_elements, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    if type_name in FLOATS:
        values = size * rng.standard_normal((n_blocks, n_elements), np.float32)
        return FLOATS[type_name](values).view(np.uint8).reshape(n_blocks, n_bytes)
    blocks = rng.integers(0, 256, (n_blocks, n_bytes), np.uint8)
    SET_SCALE[type_name](blocks, size / spread(type_name) * rng.uniform(0.6, 1.4, n_blocks))
    return blocks


@cache
def spread(type_name: str) -> float:
    """The standard deviation of a format's values where the bits are random and the scale is one."""
    number = GGMLQuantizationType[type_name]
    blocks = np.random.default_rng(0).integers(0, 256, (256, GGML_QUANT_SIZES[number][1]), np.uint8)
    SET_SCALE[type_name](blocks, np.ones(256))
    return float(gguf.dequantize(blocks, number).std())


# ------------------------------------------------------------------------------- where a block has its scale


def set_halves(blocks: Bytes, d: Scales, places: tuple[tuple[int, float], ...]) -> None:
    """A half float at each byte offset, so many times d."""
    for offset, factor in places:
        blocks[:, offset : offset + 2] = (factor * d).astype("<f2").view(np.uint8).reshape(-1, 2)


def set_exponent(blocks: Bytes, d: Scales) -> None:
    """MXFP4: a power of two in the first byte, 127 for one."""
    blocks[:, 0] = np.clip(127 + np.rint(np.log2(d)), 1, 254)


def set_e4m3(blocks: Bytes, d: Scales) -> None:
    """NVFP4: each of the four bytes in front, the nearest number of four bits of exponent and three of mantissa."""
    e, m = np.divmod(np.arange(127), 8)
    numbers = np.where(e, 2.0 ** (e - 7) * (1 + m / 8), m / 512)
    blocks[:, :4] = np.abs(numbers - np.ravel(d)[:, None]).argmin(axis=1)[:, None]


def set_nibbles(blocks: Bytes, d: Scales) -> None:
    """IQ1_M: a half float, four bits of it on top of each of the four scale words."""
    words = blocks[:, 48:56].view("<u2")
    bits = d.astype("<f2").view("<u2")[:, None] >> np.array([0, 4, 8, 12], np.uint16)
    words[:] = words & 0x0FFF | bits << 12


# Scale and, where a format has it, what is added: the mean of random values is then about zero.
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
}
SET_SCALE: dict[str, Callable[[Bytes, Scales], None]] = {
    name: partial(set_halves, places=places) for name, places in HALVES.items()
} | {"MXFP4": set_exponent, "NVFP4": set_e4m3, "IQ1_M": set_nibbles}


def to_bfloat(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper half of each float."""
    return (values.view(np.uint32) >> 16).astype("<u2")


FLOATS: dict[str, Callable[[NDArray[np.float32]], NDArray[np.generic]]] = {
    "F32": lambda values: values,
    "F16": lambda values: values.astype("<f2"),
    "BF16": to_bfloat,
}
NAMES = (*FLOATS, *SET_SCALE)
