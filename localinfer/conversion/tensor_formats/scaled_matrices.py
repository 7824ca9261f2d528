"""Matrices in 8 bits, E4M3, E5M2 or integers, with scales per matrix, row or block of rows and columns.

    weight                        F8_E4M3 (rows, columns)
    weight_scale_inv              (rows / 128, columns / 128): DeepSeek, Qwen3 FP8. Despite its name it multiplies.
    weight_scale                  one number, (rows), (rows, 1) or blocks: compressed-tensors, ModelOpt, FBGEMM
    weight_zero_point             as weight_scale: subtracted from the codes before they are multiplied

The scales of activations and of an 8-bit KV cache that such checkpoints also have are not used.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from localinfer.conversion.tensor_formats.dequantized_matrix import DECODERS, decode, dequantized
from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor
from localinfer.conversion.tensor_formats.values import FLOATS, Floats

CODE_TYPES = ("F8_E4M3", "F8_E5M2", "I8")
SCALE_TYPES = (*FLOATS, *DECODERS)
SCALE_ENDINGS, ZERO_POINT = ("_scale_inv", "_scale"), "_zero_point"
UNUSED = re.compile(r".*([._](activation_scale|input_scale|input_scale_ub)|\.[kvq]_scale|\.(k|v|q)_proj\.output_scale)")


def join_matrices(stored: Mapping[str, StoredTensor], block: Sequence[int]) -> dict[str, StoredTensor]:
    """Return the tensors with the matrices in 8 bits in F32, and without their scales.

    `block` is the number of rows and columns that share a scale, if scales are those of blocks. Raises LocalInferError
    for a matrix without scales, or with scales of another shape.
    """
    joined = dict(stored)
    for name, codes in stored.items():
        if codes.dtype in CODE_TYPES and len(codes.shape) > 1 and not name.endswith((*SCALE_ENDINGS, ZERO_POINT)):
            joined[name] = scaled_matrix(name, codes, stored, block)
            for ending in (*SCALE_ENDINGS, ZERO_POINT):
                joined.pop(f"{name}{ending}", None)
    return joined if len(joined) == len(stored) else without_unused_scales(joined)


def without_unused_scales(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors without the scales of activations and of an 8-bit KV cache."""
    return {name: each for name, each in stored.items() if not UNUSED.fullmatch(name)}


def scaled_matrix(
    name: str, codes: StoredTensor, stored: Mapping[str, StoredTensor], block: Sequence[int]
) -> StoredTensor:
    """Return a matrix in F32 that is computed from codes and scales."""
    scales = next((stored[name + each] for each in SCALE_ENDINGS if name + each in stored), None)
    if scales is None:
        raise codes.error(f"is {codes.dtype} without {name.rpartition('.')[2]}_scale")
    zeros = stored.get(name + ZERO_POINT)
    for each in (scales, *([zeros] if zeros else [])):
        if each.dtype not in SCALE_TYPES:
            raise each.error(f"is {each.dtype}; it must be one of {', '.join(SCALE_TYPES)}")
        check_shape(each, codes.shape, block)

    def compute() -> Floats:
        values, whole = decode(codes), partial(broadcastable, shape=codes.shape, block=block)
        if zeros:
            values -= whole(decode(zeros))
        with np.errstate(all="ignore"):  # values that are not finite stay so, without a warning of numpy
            values *= whole(decode(scales))
        return values

    return dequantized(name, codes.shape, codes, compute)


def padded_shape(scales: tuple[int, ...], n_dims: int) -> tuple[int, ...]:
    """Return the shape of scales with as many dimensions as the matrix has; numbers of rows or matrices come first."""
    return (*scales, *[1] * (n_dims - len(scales))) if scales != (1,) else (1,) * n_dims


def repeats(scales: int, values: int, block: int) -> int:
    """Return how many adjacent values share a scale; 0 if the numbers do not fit."""
    if scales in (1, values):
        return values // scales
    return block if scales == -(-values // block) else 0


def blocks_of(shape: tuple[int, ...], block: Sequence[int]) -> list[int]:
    """Return the size of a block in each dimension."""
    return [*[1] * (len(shape) - len(block)), *block]


def check_shape(scales: StoredTensor, shape: tuple[int, ...], block: Sequence[int]) -> None:
    """Raise LocalInferError unless the scales are one for each matrix, row or block."""
    padded = padded_shape(scales.shape, len(shape))
    sizes = zip(padded, shape, blocks_of(shape, block), strict=True) if len(padded) == len(shape) else ()
    if 0 in shape or not all(repeats(*each) for each in sizes) or len(padded) != len(shape):
        where = "x".join(map(str, block))
        raise scales.error(f"has shape {list(scales.shape)}; {list(shape)} values have blocks of {where}")


def broadcastable(values: Floats, *, shape: tuple[int, ...], block: Sequence[int]) -> Floats:
    """Return scales in a shape that numpy can multiply the matrix with."""
    values = values.reshape(padded_shape(values.shape, len(shape)))
    for axis, (size, length) in enumerate(zip(shape, blocks_of(shape, block), strict=True)):
        if values.shape[axis] not in (1, size):
            values = np.repeat(values, length, axis).take(range(size), axis)
    return values
