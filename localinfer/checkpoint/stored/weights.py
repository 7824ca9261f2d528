"""The tensors of a checkpoint as they are stored: names, shapes, types, and where their bytes lie in which file.

safetensors' own library reads and proves the headers; since it proves too that the tensors fill the rest of the file
without a gap, in the order that it tells, the bytes are views of the mapped file. So BF16, which numpy does not know,
stays what it is. Pickles are never opened.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localinfer.checkpoint.folder import Folder, Table
from localinfer.errors import LocalInferError, Unsupported
from localinfer.files import not_gguf
from localinfer.files.mapped import MappedFile
from localinfer.text import printable

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PLAIN_NAME = re.compile(r"[^/\\\0]+\.safetensors")
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
BYTES["F8_E4M3"] = 1  # scales of NVFP4


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """`dtype` is safetensors' name of the type; `load()` gives the bytes, uint8, flat: a mapping."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: MappedFile
    offset: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * BYTES[self.dtype]

    def load(self) -> NDArray[np.uint8]:
        """Raises LocalInferError when the file was changed since it was opened."""
        return self.file.window(self.offset, self.nbytes)

    def error(self, problem: str, kind: type[LocalInferError] = LocalInferError) -> LocalInferError:
        """The one line about this tensor."""
        return self.file.error(f"tensor {printable(self.name, 80)}", problem, kind)


@dataclass(frozen=True, slots=True, eq=False)
class Stacked:
    """Tensors of the same type and shape as one with a dimension more, the first."""

    parts: tuple[Stored, ...]

    @property
    def name(self) -> str:
        return self.parts[0].name

    @property
    def dtype(self) -> str:
        return self.parts[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Raises LocalInferError naming a part that is different."""
        for part in self.parts:
            if (part.dtype, part.shape) != (self.dtype, self.parts[0].shape):
                raise part.error(f"has another type or shape than {self.name}")
        return (len(self.parts), *self.parts[0].shape)

    def load(self) -> NDArray[np.uint8]:
        return np.concatenate([part.load() for part in self.parts])

    def error(self, problem: str, kind: type[LocalInferError] = LocalInferError) -> LocalInferError:
        return self.parts[0].error(problem, kind)


def open_weights(folder: Folder) -> dict[str, Stored]:
    """All tensors of the checkpoint by name.

    Raises LocalInferError for a file that is missing or damaged, Unsupported where there are only pickles.
    """
    if folder.has(INDEX):
        return read_shards(folder, folder.table(INDEX))
    path = folder.find(SINGLE)
    if path is None:
        raise no_weights(folder)
    return {tensor.name: tensor for tensor in read_file(path)}


def no_weights(folder: Folder) -> LocalInferError:
    pickles = [name for name in folder.names() if name.endswith(PICKLES)]
    if pickles:
        what = "is a pickle, which is never loaded; save the model again with safetensors"
        return folder.error(f"{printable(pickles[0], 80)}: {what}", Unsupported)
    return folder.error(f"there is neither {SINGLE} nor {INDEX}")


def read_shards(folder: Folder, index: Table) -> dict[str, Stored]:
    """The tensors of the files that the index names, and of no other ones."""
    places = index.get("weight_map", dict)
    where = Table(index.path, places, "weight_map.")
    stored: dict[str, Stored] = {}
    for shard in sorted({plain_name(where, name) for name in places}):
        path = folder.find(shard)
        if path is None:
            raise folder.error(f"{printable(shard, 80)}: no such file, but {INDEX} names it")
        for tensor in read_file(path):
            if tensor.name in stored:
                raise tensor.error(f"is also in {printable(stored[tensor.name].file.path.name, 80)}")
            stored[tensor.name] = tensor
    for name in places:
        if name not in stored:
            raise where.error(name, f"is not in {printable(places[name], 80)}")
    return stored


def plain_name(places: Table, tensor: str) -> str:
    """The name of the file that a tensor is in: a name only, never a path."""
    name = places.get(tensor, str)
    if not PLAIN_NAME.fullmatch(name):
        raise places.error(tensor, f"{printable(repr(name), 80)} is not the name of a file in this directory")
    return name


def read_file(path: Path) -> Iterator[Stored]:
    """The tensors of one file, which lie at its end, one behind the other."""
    file, shapes = MappedFile(path), headers(path)
    sizes = [prod(shape) * BYTES[dtype] for _, dtype, shape in shapes]
    offset = file.size - sum(sizes)
    for (name, dtype, shape), size in zip(shapes, sizes, strict=True):
        yield Stored(name, dtype, shape, file, offset)
        offset += size


def what_else(path: Path, error: Exception) -> str:
    """What the file is instead, where that is known."""
    with path.open("rb") as file:
        kind = not_gguf.describe(file.read(not_gguf.LONGEST))
    return f"this is {kind}" if kind and "safetensors" not in kind else printable(str(error), 160)


def headers(path: Path) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, type and shape of each tensor, in the order of their bytes."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            slices = [(name, file.get_slice(name)) for name in file.offset_keys()]
            found = [(name, part.get_dtype(), tuple(part.get_shape())) for name, part in slices]
    except (SafetensorError, OSError) as error:
        raise LocalInferError(f"{printable(str(path))}: not a safetensors file: {what_else(path, error)}") from None
    odd = next(((name, dtype) for name, dtype, _ in found if dtype not in BYTES), None)
    if odd:
        what = f"tensor {printable(odd[0], 80)}: type {printable(odd[1], 20)} is not supported"
        raise Unsupported(f"{printable(str(path))}: {what}")
    return found
