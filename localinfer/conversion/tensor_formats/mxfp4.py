"""MXFP4 matrices of checkpoints, such as gpt-oss's experts. Bits are only moved, nothing is rounded.

A checkpoint stores blocks of 32 values in 16 bytes, adjacent values in one byte, and separate scales. GGUF stores
scale and block together, with the two halves of a block in the low and high nibbles (see `quant.formats.mxfp4`).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from localinfer.conversion.tensor_formats.safetensors_file import StackedTensor, StoredTensor

BLOCK_VALUES, BLOCK_BYTES = 32, 16  # per block, without its scale


def repack_mxfp4(
    blocks: StoredTensor | StackedTensor, scales: StoredTensor | StackedTensor, shape: tuple[int, ...], rows: slice
) -> Callable[[], NDArray[np.uint8]]:
    """Return a function that gives the bytes of some rows of the matrices, (n_expert, n_out, n_in), in GGUF's layout.

    Raises LocalInferError for another type or shape.
    """
    n_expert, n_out, n_in = shape
    stored = n_expert, n_out * (rows.step or 1), -(-n_in // BLOCK_VALUES)
    for tensor, expected in ((blocks, (*stored, BLOCK_BYTES)), (scales, stored)):
        if (tensor.dtype, tensor.shape) != ("U8", expected):
            raise tensor.error(f"is {tensor.dtype} {list(tensor.shape)}, not U8 {list(expected)}")

    def load() -> NDArray[np.uint8]:
        pairs = blocks.load().reshape(*stored, BLOCK_BYTES)[:, rows]
        values = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], 2, BLOCK_BYTES)
        halves = values[..., 0, :] | values[..., 1, :] << 4
        scale = scales.load().reshape(*stored, 1)[:, rows]
        return np.concatenate([scale, halves], axis=-1).reshape(-1)

    return load
