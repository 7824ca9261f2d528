"""Matrices with scales that are powers of two, as DeepSeek-V4's checkpoints name them.

    weight    F8_E4M3 (rows, columns), or I8 (rows, columns / 2): two E2M1 numbers per byte
    scale     F8_E8M0: one for each block of rows and columns, or for 32 columns of a row
"""

from collections.abc import Mapping
from dataclasses import replace

from localinfer.conversion.tensor_formats.packed_integers import mxfp4_matrix
from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor


def join_matrices(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors with the matrices in 4 bits in F32, and with the usual names of the scales of those in 8 bits.

    Raises LocalInferError for scales of another shape.
    """
    joined = dict(stored)
    for name, scales in stored.items():
        weight = f"{name.removesuffix('.scale')}.weight"
        if scales.dtype != "F8_E8M0" or weight == f"{name}.weight" or weight not in stored:
            continue
        del joined[name]
        codes = stored[weight]
        if codes.dtype == "I8":
            joined[weight] = mxfp4_matrix(weight, {"_packed": replace(codes, dtype="U8"), "_scale": scales})
        else:
            joined[f"{weight}_scale_inv"] = scales
    return joined
