"""The tensors of a checkpoint's safetensors files: names, shapes, types and byte offsets.

The safetensors library reads and validates the headers. It also verifies that the tensors fill the rest of the file
without gaps, in the order it reports, so the bytes can be views of the mapped file. BF16, which numpy does not support,
stays unchanged. Pickles are never opened.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localinfer.conversion.checkpoint_folder import CheckpointFolder, JsonObject
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf import file_signatures
from localinfer.gguf.mapped_file import MappedFile

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
SAFETENSORS_NAME = re.compile(r"[^/\\\0]+\.safetensors")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
DTYPE_BYTES |= {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor in a file. `dtype` is safetensors' type name; `load()` returns the bytes, uint8, flat, as a mapping."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: MappedFile
    offset: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]

    def load(self) -> NDArray[np.uint8]:
        """Return the bytes. Raises LocalInferError if the file changed since it was opened."""
        return self.file.window(self.offset, self.nbytes)

    def error(self, problem: str, kind: type[LocalInferError] = LocalInferError) -> LocalInferError:
        """Return a one-line error about this tensor."""
        return self.file.error(f"tensor {printable(self.name, 80)}", problem, kind)


@dataclass(frozen=True, slots=True, eq=False)
class StackedTensor:
    """Tensors of the same type and shape, stacked along a new first dimension."""

    tensors: tuple[StoredTensor, ...]

    @property
    def name(self) -> str:
        return self.tensors[0].name

    @property
    def dtype(self) -> str:
        return self.tensors[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The stacked shape. Raises LocalInferError naming a tensor that differs."""
        for tensor in self.tensors:
            if (tensor.dtype, tensor.shape) != (self.dtype, self.tensors[0].shape):
                raise tensor.error(f"has another type or shape than {self.name}")
        return (len(self.tensors), *self.tensors[0].shape)

    def load(self) -> NDArray[np.uint8]:
        return np.concatenate([tensor.load() for tensor in self.tensors])

    def error(self, problem: str, kind: type[LocalInferError] = LocalInferError) -> LocalInferError:
        return self.tensors[0].error(problem, kind)


class JoinedTensor(StackedTensor):
    """Tensors of the same type, whose rows follow one another in one matrix."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix. Raises LocalInferError naming a tensor that does not fit."""
        first = self.tensors[0]
        for tensor in self.tensors:
            if (tensor.dtype, tensor.shape[1:], len(tensor.shape)) != (self.dtype, first.shape[1:], len(first.shape)):
                raise tensor.error(f"has another type or length of rows than {self.name}")
        return (sum(tensor.shape[0] for tensor in self.tensors), *first.shape[1:]) if first.shape else ()


def open_weights(folder: CheckpointFolder) -> dict[str, StoredTensor]:
    """Return all tensors of the checkpoint by name.

    Raises LocalInferError for a missing or damaged file, UnsupportedError if there are only pickles.
    """
    if folder.has(INDEX_FILE):
        return read_shards(folder, folder.json(INDEX_FILE))
    path = folder.find(SINGLE_FILE)
    if path is None:
        raise missing_weights_error(folder)
    return {tensor.name: tensor for tensor in read_file(path)}


def missing_weights_error(folder: CheckpointFolder) -> LocalInferError:
    """Return the error for a directory without safetensors files; it names a pickle if there is one."""
    pickles = [name for name in folder.file_names() if name.endswith(PICKLE_SUFFIXES)]
    if pickles:
        what = "is a pickle, which is never loaded; save the model again with safetensors"
        return folder.error(f"{printable(pickles[0], 80)}: {what}", UnsupportedError)
    return folder.error(f"there is neither {SINGLE_FILE} nor {INDEX_FILE}")


def read_shards(folder: CheckpointFolder, index: JsonObject) -> dict[str, StoredTensor]:
    """Return the tensors of the files that the index lists."""
    weight_map = index.get("weight_map", dict)
    where = JsonObject(index.path, weight_map, "weight_map.")
    stored: dict[str, StoredTensor] = {}
    for shard in sorted({shard_name(where, name) for name in weight_map}):
        path = folder.find(shard)
        if path is None:
            raise folder.error(f"{printable(shard, 80)}: no such file, but {INDEX_FILE} names it")
        for tensor in read_file(path):
            if tensor.name in stored:
                raise tensor.error(f"is also in {printable(stored[tensor.name].file.path.name, 80)}")
            stored[tensor.name] = tensor
    for name in weight_map:
        if name not in stored:
            raise where.error(name, f"is not in {printable(weight_map[name], 80)}")
    return stored


def shard_name(weight_map: JsonObject, tensor: str) -> str:
    """Return the file name of a tensor's shard, which must not be a path."""
    name = weight_map.get(tensor, str)
    if not SAFETENSORS_NAME.fullmatch(name):
        raise weight_map.error(tensor, f"{printable(repr(name), 80)} is not the name of a file in this directory")
    return name


def read_file(path: Path) -> Iterator[StoredTensor]:
    """Yield the tensors of one file, which are stored consecutively at its end."""
    file, shapes = MappedFile(path), read_header(path)
    sizes = [prod(shape) * DTYPE_BYTES[dtype] for _, dtype, shape in shapes]
    offset = file.size - sum(sizes)
    for (name, dtype, shape), size in zip(shapes, sizes, strict=True):
        yield StoredTensor(name, dtype, shape, file, offset)
        offset += size


def describe_problem(path: Path, error: Exception) -> str:
    """Return a description of the file's actual type if recognized, else the error text."""
    with path.open("rb") as file:
        kind = file_signatures.describe_file(file.read(file_signatures.HEAD_BYTES))
    return f"this is {kind}" if kind and "safetensors" not in kind else printable(str(error), 160)


def read_header(path: Path) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return name, type and shape of each tensor, in the order of their bytes."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            slices = [(name, file.get_slice(name)) for name in file.offset_keys()]
            headers = [(name, each.get_dtype(), tuple(each.get_shape())) for name, each in slices]
    except (SafetensorError, OSError) as error:
        raise LocalInferError(
            f"{printable(str(path))}: not a safetensors file: {describe_problem(path, error)}"
        ) from None
    odd = next(((name, dtype) for name, dtype, _ in headers if dtype not in DTYPE_BYTES), None)
    if odd:
        what = f"tensor {printable(odd[0], 80)}: type {printable(odd[1], 20)} is not supported"
        raise UnsupportedError(f"{printable(str(path))}: {what}")
    return headers
