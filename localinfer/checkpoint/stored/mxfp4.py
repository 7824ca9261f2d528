"""Matrices that are stored in MXFP4 already, as gpt-oss's experts are: nothing is rounded, bits change places.

A checkpoint has blocks of 32 values in 16 bytes, neighbours in one byte, and their scales apart; GGUF has both
together, and the halves of a block in the two halves of its bytes (see `quant.formats.mxfp4`).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from localinfer.checkpoint.stored.weights import Stacked, Stored

VALUES, BYTES = 32, 16  # of a block, without its scale


def repacked(
    blocks: Stored | Stacked, scales: Stored | Stacked, shape: tuple[int, ...], rows: slice
) -> Callable[[], NDArray[np.uint8]]:
    """What gives the bytes of some rows of the matrices, (n_expert, n_out, n_in).

    Raises LocalInferError for another type or shape.
    """
    n_expert, n_out, n_in = shape
    stored = n_expert, n_out * (rows.step or 1), -(-n_in // VALUES)
    for tensor, expected in ((blocks, (*stored, BYTES)), (scales, stored)):
        if (tensor.dtype, tensor.shape) != ("U8", expected):
            raise tensor.error(f"is {tensor.dtype} {list(tensor.shape)}, not U8 {list(expected)}")

    def load() -> NDArray[np.uint8]:
        pairs = blocks.load().reshape(*stored, BYTES)[:, rows]
        values = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], 2, BYTES)
        halves = values[..., 0, :] | values[..., 1, :] << 4
        scale = scales.load().reshape(*stored, 1)[:, rows]
        return np.concatenate([scale, halves], axis=-1).reshape(-1)

    return load
