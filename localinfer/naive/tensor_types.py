"""Decoders of the tensor types that the `gguf` package lacks: ggml's Q1_0 and Q2_0, and ik_llama.cpp's IQ2_K to IQ6_K.

Source: the block structures of ggml and of ik_llama.cpp. A decoder maps bytes of blocks, (..., bytes of a block), to
float32 values, (..., values of a block).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from quant.ggml import TYPES

Bytes = NDArray[np.uint8]
ScalesAndCodes = tuple[NDArray[np.int64], NDArray[np.integer[Any]]]
Decoder = Callable[[Bytes], NDArray[np.float32]]


def decoded(blocks: Bytes, bits: int, values: tuple[int, ...]) -> NDArray[np.float32]:
    """Decode blocks of a float16 scale followed by codes of `bits` bits, lowest bits first; `values` maps codes to
    values.
    """
    d = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float32)
    steps = np.arange(0, 8, bits, dtype=np.uint8)
    codes = blocks[..., 2:, None] >> steps & ((1 << bits) - 1)
    return d * np.array(values, np.float32)[codes.reshape(*blocks.shape[:-1], -1)]


def bits_of(packed: Bytes, bits: int) -> NDArray[np.integer[Any]]:
    """Return the bit fields of each byte, lowest first: (..., n) becomes (..., 8 / bits, n)."""
    return packed[..., None, :] >> np.arange(0, 8, bits, dtype=np.uint8)[:, None] & ((1 << bits) - 1)


def planes(packed: Bytes, bits: int) -> NDArray[np.integer[Any]]:
    """Return the codes of bit planes of 32 bytes each, (..., columns)."""
    return bits_of(packed.reshape(*packed.shape[:-1], -1, 32), bits).reshape(*packed.shape[:-1], -1)


def in_turns(packed: Bytes) -> Bytes:
    """Return the nibbles of each byte, the lower first."""
    return np.swapaxes(bits_of(packed, 4), -1, -2).reshape(*packed.shape[:-1], -1)


def six_bit_scales(block: Bytes) -> NDArray[np.int64]:
    """Return the sixteen scales of IQ4_K and IQ5_K."""
    high = np.swapaxes(bits_of(block[..., 4:8], 2), -1, -2).reshape(*block.shape[:-1], 16)
    return in_turns(block[..., 8:16]) + (high.astype(np.int64) << 4) - 32


def iq2_k(block: Bytes) -> ScalesAndCodes:
    return in_turns(block[..., 4:12]).astype(np.int64) - 8, planes(block[..., 12:76], 2)


def iq3_k(block: Bytes) -> ScalesAndCodes:
    signs = np.unpackbits(block[..., 4:6], axis=-1, bitorder="little").astype(np.int64)
    scales = (2 * in_turns(block[..., 6:14]).astype(np.int64) + 1) * (1 - 2 * signs)
    return scales, planes(block[..., 14:78], 2) | planes(block[..., 78:110], 1) << 2


def iq4_k(block: Bytes) -> ScalesAndCodes:
    sixteens = block[..., 16:144].reshape(*block.shape[:-1], 8, 16)
    return six_bit_scales(block), bits_of(sixteens, 4).reshape(*block.shape[:-1], 256)


def iq5_k(block: Bytes) -> ScalesAndCodes:
    return six_bit_scales(block), planes(block[..., 16:144], 4) | planes(block[..., 144:176], 1) << 4


def iq6_k(block: Bytes) -> ScalesAndCodes:
    scales = np.ascontiguousarray(block[..., 4:20]).view(np.int8).astype(np.int64)
    return scales, planes(block[..., 20:148], 4) | planes(block[..., 148:212], 2) << 4


# Each type's function of the scales and codes of a block, the numbers of the codes, and the shift.
SHIFTED = {
    "IQ2_K": (iq2_k, (-31, -13, 1, 17), 5),
    "IQ3_K": (iq3_k, (-63, -40, -23, -10, 1, 13, 28, 47), 4),
    "IQ4_K": (
        iq4_k, (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), 4,
    ),
    "IQ5_K": (
        iq5_k,
        (-126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36, -30, -24, -18, -12, -6,
         -1, 5, 11, 17, 23, 29, 36, 43, 51, 59, 68, 77, 87, 97, 109, 121), 2,
    ),
    "IQ6_K": (
        # The polynomial with which ik_llama.cpp decodes, rounded
        iq6_k, tuple(round(-127 + q * (6.2568 + q * (-0.11218 + q * 0.0011972))) for q in range(64)), 1,
    ),
}  # fmt: skip


def decoded_shifted(
    block: Bytes, parts: Callable[[Bytes], ScalesAndCodes], numbers: tuple[int, ...], shift: int
) -> NDArray[np.float32]:
    """Decode superblocks whose groups of 16 columns have a scale and one of two tables."""
    d = np.ascontiguousarray(block[..., :2]).view("<f2").astype(np.float32)
    shifted = np.unpackbits(block[..., 2:4], axis=-1, bitorder="little")
    scales, codes = parts(block)
    values = np.array(numbers)[codes].reshape(*block.shape[:-1], 16, 16) + shift * shifted[..., None].astype(np.int64)
    weights = (d * scales.astype(np.float32))[..., None] * values.astype(np.float32)
    return weights.reshape(*block.shape[:-1], 256)


DECODERS: dict[str, Decoder] = {
    "Q1_0": partial(decoded, bits=1, values=(-1, 1)),
    "Q2_0": partial(decoded, bits=2, values=(-1, 0, 1, 2)),
    **{
        name: partial(decoded_shifted, parts=parts, numbers=numbers, shift=shift)
        for name, (parts, numbers, shift) in SHIFTED.items()
    },
}


def decode(rows: Bytes, type_number: int) -> NDArray[np.float32]:
    """Decode rows of blocks of any type: (..., bytes of a row) to (..., values of a row)."""
    kind = TYPES[type_number]
    if kind.name not in DECODERS:
        return gguf.dequantize(rows, gguf.GGMLQuantizationType(type_number))
    blocks = rows.reshape(*rows.shape[:-1], -1, kind.bytes)
    return DECODERS[kind.name](blocks).reshape(*rows.shape[:-1], -1)
