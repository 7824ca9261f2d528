"""Decoders of the tensor types that the `gguf` package lacks: ggml's Q1_0 and Q2_0, and types of ik_llama.cpp.

Source: the block structures of ggml and of ik_llama.cpp. A decoder maps bytes of blocks, (..., bytes of a block), to
float32 values, (..., values of a block). Rows of some types begin with a header, (..., bytes of the header), which
their decoders get first.
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
RowParts = tuple[NDArray[np.int64], NDArray[np.integer[Any]], NDArray[np.integer[Any]]]
Decoder = Callable[[Bytes], NDArray[np.float32]]
RowDecoder = Callable[[Bytes, Bytes], NDArray[np.float32]]


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


def nibbles_in_halves(packed: Bytes) -> NDArray[np.integer[Any]]:
    """Return the nibbles of each sixteen bytes, the low ones first."""
    return bits_of(packed.reshape(*packed.shape[:-1], -1, 16), 4).reshape(*packed.shape[:-1], -1)


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
    return six_bit_scales(block), nibbles_in_halves(block[..., 16:144])


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
    return scaled(d, scales, np.array(numbers)[codes], shift * shifted.astype(np.int64))


def scaled(
    d: NDArray[np.float32], scales: NDArray[np.int64], values: NDArray[np.int64], added: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return d times the scale of each group, (..., groups), times its values, (..., columns), plus a number."""
    moved = values.reshape(*scales.shape, -1) + added[..., None]
    weights: NDArray[np.float32] = (d * scales.astype(np.float32))[..., None] * moved.astype(np.float32)
    return weights.reshape(values.shape)


# --- rows that begin with a scale: scales of groups of 32 columns, codes, and bits of groups -----------------------


def iq2_ks(block: Bytes) -> RowParts:
    extra = np.unpackbits(block[..., :2], axis=-1, bitorder="little")
    low = in_turns(block[..., 2:6]).astype(np.int64)
    return low + 16 * extra[..., 8:].astype(np.int64) - 16, planes(block[..., 6:70], 2), extra[..., :8]


def iq3_ks(block: Bytes) -> RowParts:
    extra = np.unpackbits(block[..., :2], axis=-1, bitorder="little")
    low = bits_of(block[..., 2:6], 4).reshape(*block.shape[:-1], 8).astype(np.int64)
    codes = planes(block[..., 6:70], 2) | planes(block[..., 70:102], 1) << 2
    return low + 16 * extra[..., :8].astype(np.int64) - 16, codes, extra[..., 8:]


def iq4_ks(block: Bytes) -> RowParts:
    scales = block[..., :8].astype(np.int64)
    return (scales & 254) - 127, nibbles_in_halves(block[..., 8:136]), block[..., :8] & 1


def iq4_kss(block: Bytes) -> RowParts:
    words = np.ascontiguousarray(block).view("<u2")
    even = words & 0xFFFE
    scales = np.packbits((words & 1).astype(np.uint8), axis=-1, bitorder="little").astype(np.int64)
    return (scales & 254) - 127, nibbles_in_halves((even ^ even >> 1).astype("<u2").view(np.uint8)), scales & 1


def iq5_ks(block: Bytes) -> RowParts:
    scales = block[..., :8].astype(np.int64)
    codes = planes(block[..., 8:136], 4) | planes(block[..., 136:168], 1) << 4
    return (scales & 254) - 127, codes, block[..., :8] & 1


SHIFTED_ROWS = {name: (parts, *SHIFTED[name.rstrip("S")][1:]) for name, parts in {
    "IQ2_KS": iq2_ks, "IQ3_KS": iq3_ks, "IQ4_KS": iq4_ks, "IQ4_KSS": iq4_kss, "IQ5_KS": iq5_ks,
}.items()}  # fmt: skip


def row_scale(header: Bytes) -> NDArray[np.float32]:
    """Return the scale of each row, (..., 1, 1): float16 or float32, as the size of the header says."""
    dtype = {2: "<f2", 4: "<f4"}[header.shape[-1]]
    return np.ascontiguousarray(header).view(dtype).astype(np.float32)[..., None]


def decoded_shifted_rows(
    header: Bytes, block: Bytes, parts: Callable[[Bytes], RowParts], numbers: tuple[int, ...], shift: int
) -> NDArray[np.float32]:
    """Decode rows that begin with a scale, whose groups of 32 columns have another one and one of two tables."""
    scales, codes, shifted = parts(block)
    return scaled(row_scale(header), scales, np.array(numbers)[codes], shift * shifted.astype(np.int64))


# --- rows that begin with a scale, and whose neighbouring values are pairs of a table ------------------------------

# Two bytes each, the first value in the lower one
PAIRS = (
    0xE9C1, 0x0DC1, 0xC1D8, 0xF6D8, 0x0DD8, 0x2FD8, 0xD8E9, 0xE9E9, 0x01E9, 0x0DE9, 0x1CE9, 0xC1F6, 0x01F6, 0x0DF6,
    0x2FF6, 0xE901, 0xF601, 0x0101, 0x0D01, 0x1C01, 0xD80D, 0xE90D, 0xF60D, 0x010D, 0x0D0D, 0xC11C, 0xE91C, 0x011C,
    0x1C1C, 0x2F1C, 0xE92F, 0x0D2F,
)  # fmt: skip
VALUE_PAIRS = np.array(PAIRS, "<u2").view(np.int8).reshape(-1, 2).astype(np.int64)


def iq2_kl(block: Bytes) -> tuple[NDArray[np.int64], NDArray[np.integer[Any]]]:
    """Return the scales of groups, and the indices of pairs."""
    high = bits_of(block[..., :2], 2)
    scales = bits_of(block[..., 2:6], 4).reshape(*block.shape[:-1], 8).astype(np.int64)
    scales += np.swapaxes(high, -1, -2).reshape(scales.shape).astype(np.int64) << 4
    fifths = bits_of(block[..., 70:86], 1).reshape(*block.shape[:-1], -1)
    return scales - 32, nibbles_in_halves(block[..., 6:70]) | fifths << 4


def decoded_pairs(header: Bytes, block: Bytes) -> NDArray[np.float32]:
    """Decode rows of IQ2_KL."""
    scales, index = iq2_kl(block)
    return scaled(row_scale(header), scales, VALUE_PAIRS[index].reshape(*block.shape[:-1], -1), np.zeros_like(scales))


# --- rows that begin with a scale, and whose values a generator makes of indices -----------------------------------

Starts = NDArray[np.int64]
TrellisParts = tuple[NDArray[np.int64], Starts]


def generated(starts: Starts, columns: int) -> NDArray[np.int64]:
    """Return the values of `columns` columns that each index plus an offset, (..., groups), stands for, (..., groups *
    columns)."""
    states, values = starts.astype(np.uint64), []
    for _ in range(columns):
        states = states * np.uint64(0xCBAC1FED) & np.uint64(0xFFFFFFFF)
        bits = states[..., None] >> np.arange(0, 32, 8, dtype=np.uint64) & np.uint64(0x3F)
        values.append(bits.sum(-1).astype(np.int64) - 126)
    return np.stack(values, -1).reshape(*starts.shape[:-1], -1)


def iq1_kt(block: Bytes) -> TrellisParts:
    sh = block[..., :8].astype(np.int64)
    top = (sh[..., None] >> np.arange(4, 8) & 1).reshape(*block.shape[:-1], 32)
    middle = bits_of(block[..., 40:56], 4).reshape(*block.shape[:-1], 32).astype(np.int64)
    index = block[..., 8:40].astype(np.int64) | middle << 8 | top << 12
    return np.array(SHIFTED["IQ4_K"][1])[sh & 15], generated(index + 4096, 8)


def iq2_kt(block: Bytes) -> TrellisParts:
    nibbles = bits_of(block[..., :4], 4).reshape(*block.shape[:-1], 8)
    index = np.ascontiguousarray(block[..., 4:68]).view("<u2").astype(np.int64)
    return np.array(SHIFTED["IQ4_K"][1])[nibbles], generated(index + 4096, 8)


def iq3_kt(block: Bytes) -> TrellisParts:
    scales = bits_of(block[..., :4], 4).reshape(*block.shape[:-1], 8).astype(np.int64)
    index = np.ascontiguousarray(block[..., 4:68]).view("<u2").astype(np.int64)
    signs = 1 - 2 * planes(block[..., 68:100], 1).astype(np.int64)
    return scales, signs * np.abs(generated(index + 4096, 8))


def iq4_kt(block: Bytes) -> TrellisParts:
    qs = np.ascontiguousarray(block[..., :32]).view("<u4").astype(np.int64)
    top = (qs[..., None] >> np.arange(8, 32, 3) & 7).reshape(*block.shape[:-1], 64)
    middle = bits_of(block[..., 96:128], 4).reshape(*block.shape[:-1], 64).astype(np.int64)
    index = block[..., 32:96].astype(np.int64) | middle << 8 | top << 12 | np.repeat(qs & 1, 8, -1) << 15
    return (qs >> 1 & 127) - 64, generated(index + 4096, 4)


def decoded_trellis_rows(header: Bytes, block: Bytes, parts: Callable[[Bytes], TrellisParts]) -> NDArray[np.float32]:
    """Decode rows that begin with a scale, whose groups of 32 columns have another one."""
    scales, values = parts(block)
    return scaled(row_scale(header), scales, values, np.zeros_like(scales))


TRELLIS = {"IQ1_KT": iq1_kt, "IQ2_KT": iq2_kt, "IQ3_KT": iq3_kt, "IQ4_KT": iq4_kt}

DECODERS: dict[str, Decoder] = {
    "Q1_0": partial(decoded, bits=1, values=(-1, 1)),
    "Q2_0": partial(decoded, bits=2, values=(-1, 0, 1, 2)),
    **{
        name: partial(decoded_shifted, parts=parts, numbers=numbers, shift=shift)
        for name, (parts, numbers, shift) in SHIFTED.items()
    },
}
ROW_DECODERS: dict[str, RowDecoder] = {
    **{
        name: partial(decoded_shifted_rows, parts=parts, numbers=numbers, shift=shift)
        for name, (parts, numbers, shift) in SHIFTED_ROWS.items()
    },
    **{name: partial(decoded_trellis_rows, parts=parts) for name, parts in TRELLIS.items()},
    "IQ2_KL": decoded_pairs,
}


def decode(rows: Bytes, type_number: int) -> NDArray[np.float32]:
    """Decode rows of blocks of any type: (..., bytes of a row) to (..., values of a row)."""
    kind = TYPES[type_number]
    blocks = rows[..., kind.header :].reshape(*rows.shape[:-1], -1, kind.bytes)
    if kind.name in ROW_DECODERS:
        return ROW_DECODERS[kind.name](rows[..., : kind.header], blocks).reshape(*rows.shape[:-1], -1)
    if kind.name in DECODERS:
        return DECODERS[kind.name](blocks).reshape(*rows.shape[:-1], -1)
    return gguf.dequantize(rows, gguf.GGMLQuantizationType(type_number))
