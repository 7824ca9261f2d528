"""Control vectors: files with a vector for each layer, as llama.cpp's cvector-generator writes them.

    general.architecture = controlvector
    direction.N                             float32 (n_embd,): added to the residual stream after layer N (from 0)

As in llama.cpp, the first layer, 0, has no vector.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localinfer.adapters.target import Target
from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.gguf.reader import open_gguf

ARCHITECTURE = "controlvector"
DIRECTION = re.compile(r"direction\.(\d{1,6})")

Floats = NDArray[np.float32]


def read_directions(
    vectors: Sequence[tuple[Path, float]], target: Target, layers: range | None = None
) -> dict[int, Floats]:
    """Return the sum of control vectors, each times its scale, by layer: of all layers, or of those in a range.

    Raises LocalInferError for a file that is no control vector of the model.
    """
    total: dict[int, Floats] = {}
    for path, scale in vectors:
        for layer, direction in read_file(path, target).items():
            if layers is None or layer in layers:
                total[layer] = total.get(layer, np.float32(0)) + np.float32(scale) * direction
    return total


def read_file(path: Path, target: Target) -> Mapping[int, Floats]:
    """Return the vectors of a file by layer."""
    f = open_gguf(path)
    if f.architecture != ARCHITECTURE:
        raise LocalInferError(f"{printable(str(path))}: general.architecture: must be {ARCHITECTURE}")
    n_layer, length, found = target.number("block_count"), target.number("embedding_length"), dict[int, Floats]()
    for name, tensor in f.tensors.items():
        where, match = f"{printable(str(path))}: {printable(name, 80)}", DIRECTION.fullmatch(name)
        if match is None:
            raise LocalInferError(f"{where}: must be direction.N, where N is a layer")
        layer = int(match[1])
        if not 1 <= layer < n_layer:
            raise LocalInferError(f"{where}: the model has the layers 1 to {n_layer - 1} for control vectors")
        if tensor.type_name != "F32" or tensor.shape != (length,):
            what = f"{tensor.type_name} {list(tensor.shape)}"
            raise LocalInferError(f"{where}: must be F32 [{length}] for this model, not {what}")
        values: Floats = tensor.data.view(np.float32)
        if not np.isfinite(values).all():
            raise LocalInferError(f"{where}: has values that are not finite")
        if layer in found:
            raise LocalInferError(f"{where}: there are two vectors for layer {layer}")
        found[layer] = values
    if not found:
        raise LocalInferError(f"{printable(str(path))}: has no vectors")
    return found
