"""LoRA adapters in files, checked against the model that they are for.

For each matrix W of the model that an adapter changes, it has two small ones:

    W + scale * factor * B A         A: (rank, n_in), B: (n_out, rank)
    W + scale * factor * A B^T       of the token embeddings: A (n_vocab, rank), B (n_embd, rank)

With experts, all three have a first dimension for them.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer.adapters.gguf_adapter import open_gguf_adapter
from localinfer.adapters.stored_pairs import LoraFile, StoredPair
from localinfer.adapters.target import Target
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.dequantize import Decoder
from localinfer.gguf.source import SourceTensor
from localinfer.graph.properties.adapters import EMBEDDINGS
from localinfer.options import MAX_SCALE
from quant import FORMATS, ggml

F16, BF16 = ggml.TYPE_NUMBERS["F16"], ggml.TYPE_NUMBERS["BF16"]
LARGEST_EXPONENT = 15  # values below 2^15 are within the range of float16


def open_lora(path: Path, target: Target) -> LoraFile:
    """Open a LoRA adapter for a model: a GGUF file, or PEFT's folder or safetensors file.

    Raises LocalInferError for a damaged adapter or that of another model, UnsupportedError for other kinds of adapters,
    and for a model with scale pairs.
    """
    if target.has_scale_pairs:
        what = "the model was quantized with --scale-pairs, so adapters do not fit its matrices"
        raise UnsupportedError(f"{printable(str(path))}: {what}")
    if path.is_dir() or path.suffix == ".safetensors":
        from localinfer.adapters.peft_adapter import open_peft_adapter

        found = open_peft_adapter(path, target)
    else:
        found = open_gguf_adapter(path, target)
    if not found.pairs:
        raise LocalInferError(f"{printable(str(path))}: has no matrices")
    for name, pair in found.pairs.items():
        require_fit(found, name, pair, target)
    return found


def require_fit(file: LoraFile, name: str, pair: StoredPair, target: Target) -> None:
    """Raise LocalInferError unless the matrices fit the model's tensor and the factor is finite."""
    where = f"{printable(str(file.path))}: {printable(pair.a.name, 80)}"
    whole = target.shape(name)
    if whole is None:
        raise LocalInferError(f"{where}: the model has no such tensor")
    if not is_pair(pair.a.shape, pair.b.shape, whole, embeddings=name == EMBEDDINGS):
        shapes = f"{pair.a.shape} and {pair.b.shape}"
        raise LocalInferError(f"{where}: {shapes} do not fit a tensor of {whole}")
    rank = pair.b.shape[-1]
    if rank > max(whole[-2:]):
        raise LocalInferError(f"{where}: the rank {rank} is larger than the matrix of {whole}")
    if not abs(pair.factor) < MAX_SCALE:
        raise LocalInferError(f"{where}: its factor {pair.factor:g} is no finite number, or too large")


def is_pair(a: tuple[int, ...], b: tuple[int, ...], whole: tuple[int, ...], *, embeddings: bool) -> bool:
    """Return whether the product of A and B has the shape of the whole tensor."""
    if not len(a) == len(b) == len(whole) >= 2 or 0 in (*a, *b):
        return False
    if embeddings:
        return a[-1] == b[-1] and (*a[:-1], b[-2]) == whole
    return a[-2] == b[-1] and a[:-2] == b[:-2] and (*b[:-1], a[-1]) == whole


def half_or_floats(tensor: SourceTensor, path: Path) -> NDArray[np.floating[Any]]:
    """Return the values of a matrix as they are if they are float16, else as float32.

    Raises LocalInferError if a value is not finite, UnsupportedError for a type that has no kernels.
    """
    if tensor.type == F16:
        values: NDArray[np.floating[Any]] = np.array(tensor.load().view(np.float16).reshape(tensor.shape))
    else:
        values = floats(tensor)
    if not np.isfinite(values).all():
        raise LocalInferError(f"{printable(str(path))}: {printable(tensor.name, 80)}: has values that are not finite")
    return values


def computed_values(tensor: SourceTensor, path: Path) -> tuple[NDArray[np.floating[Any]], float]:
    """Return numbers that are computed with in place of the values of a matrix, and the factor that makes them equal.

    They are those of `half_or_floats`, unless the file has bfloat16: if all values times a power of two are float16
    numbers, those are returned, which halves what decode reads. Raises the errors of `half_or_floats`.
    """
    values = half_or_floats(tensor, path)
    if tensor.type != BF16:
        return values, 1.0
    _, exponent = np.frexp(np.abs(values).max(initial=0.0))  # the largest value is below 2^exponent
    shift = LARGEST_EXPONENT - int(exponent)
    scaled = np.ldexp(values, shift)
    half = scaled.astype(np.float16)
    return (half, 2.0**-shift) if np.array_equal(half, scaled) else (values, 1.0)


def floats(tensor: SourceTensor) -> NDArray[np.float32]:
    """Return the values of a tensor. Raises UnsupportedError for a type that has no kernels."""
    if tensor.type not in FORMATS:
        raise UnsupportedError(f"tensor {printable(tensor.name, 80)}: type {tensor.type_name} is not supported")
    values = np.empty((tensor.n_elements // tensor.shape[-1], tensor.shape[-1]), np.float32)
    Decoder(tensor.type).rows(tensor.load(), values)
    return values.reshape(tensor.shape)
