"""A GGUF model, in one file or several splits, as a `Source`, without the metadata keys of splitting."""

from functools import partial
from pathlib import Path

from localinfer.gguf.reader import GGUF, Tensor, open_gguf
from localinfer.gguf.source import Field, Source, SourceTensor
from localinfer.gguf.split_names import SPLIT_COUNT, SPLIT_NUMBER, SPLIT_TENSORS_COUNT

SPLIT_KEYS = (SPLIT_NUMBER, SPLIT_COUNT, SPLIT_TENSORS_COUNT)


def from_gguf(path: Path) -> Source:
    """Open a GGUF file as a Source; any split opens the whole model.

    Raises LocalInferError with `<path>: <key or tensor>: <what is wrong>`.
    """
    f = open_gguf(path)
    tensors = {name: source_tensor(f, tensor) for name, tensor in f.tensors.items()}
    return Source(path, read_fields(f), tensors, tuple(file.path for file in f.files))


def read_fields(f: GGUF) -> dict[str, Field]:
    """Return the metadata without the keys of splitting, byte for byte as in the file."""
    return {key: field for key, field in all_fields(f).items() if key not in SPLIT_KEYS}


def all_fields(f: GGUF) -> dict[str, Field]:
    """Return the metadata of the first file, byte for byte."""
    fields = {}
    for key, (begin, end) in f.value_spans.items():
        raw = f.files[0].map[begin:end]
        fields[key] = Field(int.from_bytes(raw[:4], "little"), raw[4:])
    return fields


def source_tensor(f: GGUF, tensor: Tensor) -> SourceTensor:
    """Return a tensor whose bytes are loaded from the file on demand."""
    load = partial(f.files[tensor.split_index].window, tensor.offset, tensor.nbytes)
    return SourceTensor(tensor.name, tensor.shape, tensor.type, load, tensor.split_index)
