"""LoRA adapters merged into a model, as a `Source`.

If the output layer shares the weights of the token embeddings and an adapter changes one of them, the result has
separate ones.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localinfer.adapters.lora_file import floats, half_or_floats, open_lora
from localinfer.adapters.stored_pairs import StoredPair
from localinfer.adapters.target import Target
from localinfer.gguf.file_types import FILE_TYPE
from localinfer.gguf.source import Field, Source, SourceTensor
from localinfer.graph.properties.adapters import EMBEDDINGS
from quant import ggml

OUTPUT = "output.weight"
F32, F16 = ggml.TYPE_NUMBERS["F32"], ggml.TYPE_NUMBERS["F16"]
MOSTLY_F16 = 1  # general.file_type

ScaledPairs = Sequence[tuple[Path, StoredPair, float]]  # with the scale of each


def merge_adapters(source: Source, adapters: Sequence[tuple[Path, float]], *, exact: bool = False) -> Source:
    """Return the source with the adapters added to its weights, each with a scale.

    A changed tensor is F32 if it was or if the values should be `exact`, else F16 as with llama-export-lora; the others
    stay as they are. Raises LocalInferError for an adapter of another model, or one that is damaged, UnsupportedError
    for one of another kind.
    """
    if not adapters:
        return source
    changes: dict[str, list[tuple[Path, StoredPair, float]]] = {}
    files, target = list(source.files), Target.of_source(source)
    for path, scale in adapters:
        adapter = open_lora(path, target)
        files += adapter.files
        for name, pair in adapter.pairs.items():
            changes.setdefault(name, []).append((path, pair, scale))
    originals = dict(source.tensors)
    if changes.keys() & {EMBEDDINGS, OUTPUT} and OUTPUT not in originals:
        originals[OUTPUT] = replace(originals[EMBEDDINGS], name=OUTPUT)
    tensors = {
        name: merged_tensor(tensor, changes[name], exact=exact) if name in changes else tensor
        for name, tensor in originals.items()
    }
    fields = source.fields if exact else {**source.fields, FILE_TYPE: Field.uint32(MOSTLY_F16)}
    return replace(source, fields=fields, tensors=tensors, files=tuple(files))


def merged_tensor(tensor: SourceTensor, changes: ScaledPairs, *, exact: bool) -> SourceTensor:
    """Return the tensor with the changes, which are computed when it is loaded."""
    type = F32 if tensor.type == F32 or exact else F16
    return replace(tensor, type=type, load=partial(merge, tensor, changes, type))


def merge(tensor: SourceTensor, changes: ScaledPairs, type: int) -> NDArray[np.uint8]:
    """Return the bytes of a tensor with the changes."""
    values = floats(tensor)
    for path, pair, scale in changes:
        a, b = (half_or_floats(each, path).astype(np.float32, copy=False) for each in (pair.a, pair.b))
        product = a @ b.swapaxes(-1, -2) if tensor.name == EMBEDDINGS else b @ a
        values += np.float32(scale * pair.factor) * product
    return np.ascontiguousarray(values if type == F32 else values.astype(np.float16)).view(np.uint8).reshape(-1)
