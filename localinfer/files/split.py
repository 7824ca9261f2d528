"""A GGUF model, in one file or in several, as a `Source`: all of its metadata but what says how it was split."""

from functools import partial
from pathlib import Path

from localinfer.files.gguf import GGUF, Tensor, open_gguf
from localinfer.files.source import Field, Source, SourceTensor

SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")


def from_gguf(path: Path) -> Source:
    """Open a file, and if it is a part of a model, whichever, all others with it.

    Raises LocalInferError with `<path>: <key or tensor>: <what is wrong>`.
    """
    f = open_gguf(path)
    tensors = {name: tensor_of(f, tensor) for name, tensor in f.tensors.items()}
    return Source(path, fields_of(f), tensors, tuple(file.path for file in f.files))


def fields_of(f: GGUF) -> dict[str, Field]:
    """The metadata, to the bit."""
    fields = {}
    for key, (begin, end) in f.spans.items():
        if key not in SPLIT_KEYS:
            raw = f.files[0].map[begin:end]
            fields[key] = Field(int.from_bytes(raw[:4], "little"), raw[4:])
    return fields


def tensor_of(f: GGUF, tensor: Tensor) -> SourceTensor:
    load = partial(f.files[tensor.part].window, tensor.offset, tensor.nbytes)
    return SourceTensor(tensor.name, tensor.shape, tensor.type, load, tensor.part)
