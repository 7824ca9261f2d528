"""Formats of quantized checkpoints: random codes and scales as they are stored, and the values that they mean, computed
in float64 from the definitions of the formats. Independent of localinfer's code.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stored_tensors import StoredTensor, shapes_of

Values = NDArray[np.float64]
Parts = dict[str, StoredTensor]  # by the suffix of the matrix's name
Format = Callable[[np.random.Generator, tuple[int, int]], tuple[Parts, Values]]
F8 = "F8_E4M3"


def e4m3(code: int) -> float:
    sign, exponent, mantissa = -1 if code & 128 else 1, code >> 3 & 15, code & 7
    if code & 127 == 127:
        return float("nan")
    return sign * ((1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa * 2.0**-9)


def e5m2(code: int) -> float:
    sign, exponent, mantissa = -1 if code & 128 else 1, code >> 2 & 31, code & 3
    return sign * ((1 + mantissa / 4) * 2.0 ** (exponent - 15) if exponent else mantissa * 2.0**-16)


E4M3 = np.array([e4m3(code) for code in range(256)])
E5M2 = np.array([e5m2(code) for code in range(256)])
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def codes_of_8_bits(rng: np.random.Generator, shape: tuple[int, int], largest: int) -> NDArray[np.uint8]:
    return (rng.integers(0, largest, shape) | 128 * rng.integers(0, 2, shape)).astype(np.uint8)


def small(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return (rng.integers(1, 2000, shape) * 2.0**-14).astype(np.float32)


def fp8_blocks(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Values]:
    """Blocks of 64 x 128 values, which rows and columns need not fill."""
    codes, scales = codes_of_8_bits(rng, shape, 127), small(rng, -(-shape[0] // 64), -(-shape[1] // 128))
    values = E4M3[codes] * scales[np.arange(shape[0])[:, None] // 64, np.arange(shape[1]) // 128]
    return {"weight": (F8, codes), "weight_scale_inv": ("F32", scales)}, values


def fp8_power_of_two_blocks(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Values]:
    parts, _ = fp8_blocks(rng, shape)
    codes, exponents = parts["weight"][1], rng.integers(110, 130, parts["weight_scale_inv"][1].shape, np.uint8)
    scales = np.exp2(exponents.astype(np.float64) - 127)
    values = E4M3[codes] * scales[np.arange(shape[0])[:, None] // 64, np.arange(shape[1]) // 128]
    return {"weight": (F8, codes), "weight_scale_inv": ("F8_E8M0", exponents)}, values


def fp8_matrix(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Values]:
    """One scale for the whole matrix, and one of its inputs."""
    codes, scale = codes_of_8_bits(rng, shape, 127), small(rng)
    parts = {"weight": (F8, codes), "weight_scale": ("F32", scale), "input_scale": ("F32", np.float32(3))}
    return parts, E4M3[codes] * np.float64(scale)


def fp8_rows(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Values]:
    codes, scales = codes_of_8_bits(rng, shape, 127), small(rng, shape[0], 1)
    return {"weight": (F8, codes), "weight_scale": ("F32", scales)}, E4M3[codes] * scales


def fp8_rows_as_vector(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Values]:
    parts, values = fp8_rows(rng, shape)
    return parts | {"weight_scale": ("F32", parts["weight_scale"][1][:, 0])}, values


def fp8_with_larger_exponents(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Values]:
    codes, scales = codes_of_8_bits(rng, shape, 124), small(rng, shape[0], 1)
    return {"weight": ("F8_E5M2", codes), "weight_scale": ("F32", scales)}, E5M2[codes] * scales


def bf16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def int8_rows(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Values]:
    codes, scales = rng.integers(-128, 128, shape).astype(np.int8), small(rng, shape[0], 1)
    rounded = (bf16_bits(scales).astype(np.uint32) << 16).view(np.float32)
    return {"weight": ("I8", codes), "weight_scale": ("BF16", bf16_bits(scales))}, codes * rounded.astype(np.float64)


def int8_with_zero_points(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Values]:
    codes, scales = rng.integers(-128, 128, shape).astype(np.int8), small(rng, shape[0], 1)
    zeros = rng.integers(-128, 128, (shape[0], 1)).astype(np.int8)
    parts = {"weight": ("I8", codes), "weight_scale": ("F32", scales), "weight_zero_point": ("I8", zeros)}
    return parts, (codes.astype(np.float64) - zeros) * scales


def packed(codes: NDArray[Any], bits: int, axis: int, places: tuple[int, ...] = tuple(range(32))) -> NDArray[np.int32]:
    """Return codes packed along an axis: the one at index i of a word is at place `places[i]`, 0 the lowest."""
    per_word = 32 // bits
    moved = np.moveaxis(codes, axis, -1)
    moved = np.pad(moved, ((0, 0), (0, -moved.shape[-1] % per_word)))
    words = np.zeros((moved.shape[0], moved.shape[1] // per_word), np.uint32)
    for column in range(moved.shape[1]):
        shift = bits * places[column % per_word]
        words[:, column // per_word] |= moved[:, column].astype(np.uint32) << np.uint32(shift)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32)


def shape_of(shape: tuple[int, int]) -> StoredTensor:
    return "I64", np.array(shape, np.int64)


def int4_groups(rng: np.random.Generator, shape: tuple[int, int], size: int = 64) -> tuple[Parts, Values]:
    """Groups of 64 columns, of which the last may be shorter."""
    codes, scales = rng.integers(0, 16, shape), small(rng, shape[0], -(-shape[1] // size))
    parts = {
        "weight_packed": ("I32", packed(codes, 4, 1)), "weight_scale": ("F32", scales), "weight_shape": shape_of(shape)
    }  # fmt: skip
    return parts, (codes - 8.0) * scales[:, np.arange(shape[1]) // size]


def int4_whole_groups(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Values]:
    return int4_groups(rng, shape, 32)


def int4_groups_in_another_order(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Values]:
    """Asymmetric, and the group of each column is stored."""
    codes, groups = rng.integers(0, 16, shape), -(-shape[1] // 64)
    scales, zeros = small(rng, shape[0], groups), rng.integers(0, 16, (shape[0], groups))
    order = rng.integers(0, groups, shape[1]).astype(np.int32)
    parts = {
        "weight_packed": ("I32", packed(codes, 4, 1)), "weight_scale": ("F32", scales),
        "weight_zero_point": ("I32", packed(zeros, 4, 0)), "weight_g_idx": ("I32", order),
        "weight_shape": shape_of(shape),
    }  # fmt: skip
    return parts, (codes - zeros[:, order]) * scales[:, order].astype(np.float64)


def int8_packed_rows(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Values]:
    codes, scales = rng.integers(0, 256, shape), small(rng, shape[0], 1)
    unordered = np.full(shape[1], -1, np.int32)
    parts = {
        "weight_packed": ("I32", packed(codes, 8, 1)), "weight_scale": ("F32", scales), "weight_shape": shape_of(shape),
        "weight_g_idx": ("I32", unordered),
    }  # fmt: skip
    return parts, (codes - 128.0) * scales


def mxfp4(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Values]:
    codes = rng.integers(0, 16, shape).astype(np.uint8)
    exponents = rng.integers(110, 130, (shape[0], shape[1] // 32), np.uint8)
    scales = np.exp2(np.repeat(exponents, 32, 1).astype(np.float64) - 127)
    values = np.where(codes & 8, -1, 1) * E2M1[codes & 7] * scales
    pairs = codes[:, ::2] | codes[:, 1::2] << 4
    return {"weight_packed": ("U8", pairs), "weight_scale": ("U8", exponents)}, values


def fp8_with_short_names(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Values]:
    """The names of DeepSeek-V4."""
    parts, values = fp8_power_of_two_blocks(rng, shape)
    return {"weight": parts["weight"], "scale": parts["weight_scale_inv"]}, values


def fp4_with_short_names(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Values]:
    """The names and types of DeepSeek-V4's experts."""
    parts, values = mxfp4(rng, shape)
    codes, exponents = parts["weight_packed"][1], parts["weight_scale"][1]
    return {"weight": ("I8", codes.view(np.int8)), "scale": ("F8_E8M0", exponents)}, values


def gptq(rng: np.random.Generator, shape: tuple[int, int], bits: int = 4, *, offset: int = 1) -> tuple[Parts, Values]:
    """The group of each column is stored; zero points are stored less 1 in the first version."""
    rows, columns = shape
    groups, largest = columns // 32, 1 << bits
    codes, zeros = rng.integers(0, largest, (columns, rows)), rng.integers(0, largest, (groups, rows))
    order, scales = rng.permutation(columns).astype(np.int32) // 32, small(rng, groups, rows).astype(np.float16)
    parts = {
        "qweight": ("I32", packed(codes, bits, 0)), "qzeros": ("I32", packed(zeros, bits, 1)),
        "scales": ("F16", scales), "g_idx": ("I32", order),
    }  # fmt: skip
    return parts, ((codes - zeros[order] - offset) * scales[order].astype(np.float64)).T


def gptq_8_bits(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Values]:
    return gptq(rng, shape, 8)


def gptq_2_bits_version_2(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Values]:
    return gptq(rng, shape, 2, offset=0)


def awq(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Values]:
    rows, columns = shape
    codes, zeros = rng.integers(0, 16, (columns, rows)), rng.integers(0, 16, (columns // 32, rows))
    scales, places = small(rng, columns // 32, rows).astype(np.float16), (0, 4, 1, 5, 2, 6, 3, 7)
    parts = {
        "qweight": ("I32", packed(codes, 4, 1, places)), "qzeros": ("I32", packed(zeros, 4, 1, places)),
        "scales": ("F16", scales),
    }  # fmt: skip
    return parts, ((codes - np.repeat(zeros, 32, 0)) * np.repeat(scales, 32, 0).astype(np.float64)).T


def compressed(layout: str, **weights: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": {"weights": weights}}}


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [64, 128]}
FLOAT8 = compressed("float-quantized", num_bits=8, type="float", strategy="channel")
INT8 = compressed("int-quantized", num_bits=8, type="int", strategy="channel")
INT4 = compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=64)
FORMATS: dict[str, tuple[dict[str, Any], Format]] = {
    "FP8, blocks": (FP8, fp8_blocks),
    "FP8, blocks with scales of powers of two": (FP8, fp8_power_of_two_blocks),
    "FP8, compressed-tensors' name of the size of blocks": (
        compressed("float-quantized", num_bits=8, strategy="block", block_structure=[64, 128]),
        fp8_blocks,
    ),
    "FP8, DeepSeek-V4's names": (FP8, fp8_with_short_names),
    "FP4, DeepSeek-V4's names": (FP8, fp4_with_short_names),
    "FP8, one scale": (FLOAT8, fp8_matrix),
    "FP8, rows": (FLOAT8, fp8_rows),
    "FP8, rows, ModelOpt": ({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL"}, fp8_rows_as_vector),
    "FP8, FBGEMM": ({"quant_method": "fbgemm_fp8"}, fp8_rows),
    "FP8, E5M2": (FLOAT8, fp8_with_larger_exponents),
    "int8": (INT8, int8_rows),
    "int8, zero points": (INT8, int8_with_zero_points),
    "int4": (INT4, int4_groups),
    "int4, whole groups": (
        compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32),
        int4_whole_groups,
    ),
    "int4, ordered": (INT4, int4_groups_in_another_order),
    "int8, packed": (compressed("pack-quantized", num_bits=8, group_size=None), int8_packed_rows),
    "MXFP4": (compressed("mxfp4-pack-quantized", num_bits=4, group_size=32), mxfp4),
    "GPTQ": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, gptq),
    "GPTQ, 8 bits": ({"quant_method": "gptq", "bits": 8, "group_size": 32}, gptq_8_bits),
    "GPTQ, version 2": (
        {"quant_method": "gptq", "bits": 2, "group_size": 32, "checkpoint_format": "gptq_v2"},
        gptq_2_bits_version_2,
    ),
    "AutoRound": ({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4}, gptq),
    "AWQ": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, awq),
}


def both(name: str, quantized: Format) -> tuple[Parts, Parts]:
    """Return the tensors of a checkpoint twice: in F32, and with quantized matrices."""
    rng = np.random.default_rng(7)
    plain: Parts = {}
    stored: Parts = {}
    for key, shape in shapes_of(name).items():
        if "_proj" not in key:
            plain[key] = stored[key] = "F32", rng.standard_normal(shape, np.float32)
            continue
        parts, values = quantized(rng, (shape[0], shape[1]))
        assert np.isfinite(values).all()
        plain[key] = "F32", values.astype(np.float32)
        stored |= {f"{key.removesuffix('weight')}{part}": each for part, each in parts.items()}
    return plain, stored
