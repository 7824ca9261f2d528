"""LoRA adapters merged into a model, as a `Source`.

An adapter is a GGUF file as llama.cpp's convert_lora_to_gguf.py writes it. For each matrix W of the model that it
changes, it has two small ones:

    W + scale * alpha / rank * B A         A: NAME.lora_a (rank, n_in), B: NAME.lora_b (n_out, rank)
    W + scale * alpha / rank * A B^T       of the token embeddings: A (n_vocab, rank), B (n_embd, rank)

Without alpha, the factor is `scale`. A changed tensor is F32 if it was, else F16; the others stay as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.dequantize import Decoder
from localinfer.gguf.file_types import FILE_TYPE
from localinfer.gguf.gguf_source import from_gguf
from localinfer.gguf.source import Field, Source, SourceTensor
from quant import FORMATS, ggml

LORA_A, LORA_B = ".lora_a", ".lora_b"
EMBEDDINGS = "token_embd"
F32, F16 = ggml.TYPE_NUMBERS["F32"], ggml.TYPE_NUMBERS["F16"]
MOSTLY_F16 = 1  # general.file_type

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LowRankChange:
    """The matrices A and B of an adapter for one tensor, and the factor of their product."""

    a: SourceTensor
    b: SourceTensor
    factor: float

    def add_to(self, values: Floats, *, embeddings: bool) -> None:
        a, b = floats(self.a), floats(self.b)
        product = a @ b.swapaxes(-1, -2) if embeddings else b @ a
        values += np.float32(self.factor) * product


def merge_adapters(source: Source, adapters: Sequence[tuple[Path, float]]) -> Source:
    """Return the source with the adapters added to its weights, each with a scale.

    Raises LocalInferError for an adapter of another model, or one that is damaged.
    """
    if not adapters:
        return source
    changes: dict[str, list[LowRankChange]] = {}
    files = list(source.files)
    for path, scale in adapters:
        adapter = open_adapter(path, source)
        files += adapter.files
        for name, change in read_changes(adapter, scale, source.tensors).items():
            changes.setdefault(name, []).append(change)
    tensors = {
        name: merged_tensor(tensor, changes[name]) if name in changes else tensor
        for name, tensor in source.tensors.items()
    }
    fields = {**source.fields, FILE_TYPE: Field.uint32(MOSTLY_F16)}
    return replace(source, fields=fields, tensors=tensors, files=tuple(files))


def open_adapter(path: Path, source: Source) -> Source:
    """Open an adapter. Raises LocalInferError unless it is a LoRA adapter for the architecture of the source."""
    adapter = from_gguf(path)
    for key, expected in ("general.type", b"adapter"), ("adapter.type", b"lora"):
        if text(adapter, key) != expected:
            wrong = f"{key}: must be {expected.decode()}: it is not a LoRA adapter"
            raise LocalInferError(f"{printable(str(path))}: {wrong}")
    key = "general.architecture"
    if text(adapter, key) != text(source, key):
        names = (printable(text(each, key).decode("utf-8", "replace"), 80) for each in (adapter, source))
        raise LocalInferError("{}: {}: {}, but the model is {}".format(printable(str(path)), key, *names))
    return adapter


def text(source: Source, key: str) -> bytes:
    field = source.fields.get(key)
    return field.value if field and isinstance(field.value, bytes) else b""


def read_changes(
    adapter: Source, scale: float, tensors: Mapping[str, SourceTensor]
) -> dict[str, LowRankChange]:
    """Return the changes by tensor name. Raises LocalInferError for matrices that do not fit the model."""
    alpha = adapter.fields.get("adapter.lora.alpha")
    found = {}
    for name, tensor in adapter.tensors.items():
        base, is_a = name.removesuffix(LORA_A).removesuffix(LORA_B), name.endswith(LORA_A)
        where = f"{printable(str(adapter.path))}: {printable(name, 80)}"
        if base == name or base not in tensors:
            raise LocalInferError(f"{where}: the model has no such tensor")
        if base + (LORA_B if is_a else LORA_A) not in adapter.tensors:
            raise LocalInferError(f"{where}: the other matrix of the pair is missing")
        if is_a:
            b = adapter.tensors[base + LORA_B]
            if not is_pair(tensor.shape, b.shape, tensors[base].shape, embeddings=base.startswith(EMBEDDINGS)):
                shapes = f"{tensor.shape} and {b.shape}"
                raise LocalInferError(f"{where}: {shapes} do not fit a tensor of {tensors[base].shape}")
            strength = float(alpha.value) if alpha and isinstance(alpha.value, int | float) else 0.0
            found[base] = LowRankChange(tensor, b, scale * strength / b.shape[-1] if strength else scale)
    return found


def is_pair(a: tuple[int, ...], b: tuple[int, ...], whole: tuple[int, ...], *, embeddings: bool) -> bool:
    """Return whether the product of A and B has the shape of the whole tensor."""
    if not len(a) == len(b) == len(whole) >= 2:
        return False
    if embeddings:
        return a[-1] == b[-1] and (*a[:-1], b[-2]) == whole
    return a[-2] == b[-1] and a[:-2] == b[:-2] and (*b[:-1], a[-1]) == whole


def merged_tensor(tensor: SourceTensor, changes: Sequence[LowRankChange]) -> SourceTensor:
    """Return the tensor with the changes, which are computed when it is loaded."""
    type = F32 if tensor.type == F32 else F16
    return replace(tensor, type=type, load=partial(merge, tensor, changes, type))


def merge(tensor: SourceTensor, changes: Sequence[LowRankChange], type: int) -> NDArray[np.uint8]:
    values = floats(tensor)
    for change in changes:
        change.add_to(values, embeddings=tensor.name.startswith(EMBEDDINGS))
    return np.ascontiguousarray(values if type == F32 else values.astype(np.float16)).view(np.uint8).reshape(-1)


def floats(tensor: SourceTensor) -> Floats:
    """Return the values of a tensor. Raises UnsupportedError for a type that has no kernels."""
    if tensor.type not in FORMATS:
        raise UnsupportedError(f"tensor {printable(tensor.name, 80)}: type {tensor.type_name} is not supported")
    values = np.empty((tensor.n_elements // tensor.shape[-1], tensor.shape[-1]), np.float32)
    Decoder(tensor.type).rows(tensor.load(), values)
    return values.reshape(tensor.shape)
