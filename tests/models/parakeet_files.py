"""Files of Parakeet for tests: those of the tiny checkpoints, and changed ones."""

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import parakeet_checkpoints
from checkpoints import as_f32
from numpy.typing import NDArray

from localinfer.gguf.reader import StringArray, open_gguf

Metadata = dict[str, Any]
Tensors = dict[str, NDArray[np.float32]]


def write_model(name: str, path: Path) -> Path:
    """Write the file of a tiny checkpoint in F32 and return its path."""
    with tempfile.TemporaryDirectory() as folder:
        return as_f32(parakeet_checkpoints.write_checkpoint(name, Path(folder)), path)


@cache
def contents(name: str, path: Path) -> tuple[Metadata, Tensors]:
    """Return the keys and the tensors of the file of a tiny checkpoint."""
    f = open_gguf(write_model(name, path))
    metadata = {
        key: [text.decode() for text in value] if isinstance(value, StringArray) else value
        for key, value in f.metadata.items()
    }
    return metadata, {name: each.data.view(np.float32).reshape(each.shape) for name, each in f.tensors.items()}


def write_changed(name: str, folder: Path, change: Callable[[Metadata, Tensors], object]) -> Path:
    """Write the file of a tiny checkpoint with changes, and return its path."""
    metadata, tensors = map(dict, contents(name, folder / "original.gguf"))
    change(metadata, tensors)
    path = folder / "changed.gguf"
    writer = gguf.GGUFWriter(path, "parakeet")
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        if isinstance(value, np.ndarray):
            value = value.tolist()
        (writer.add_array if isinstance(value, list) else add[type(value)])(key, value)
    for each, values in tensors.items():
        writer.add_tensor(each, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
