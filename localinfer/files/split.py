"""GGUF files as a `Source`: one file, or all the parts of a model that was split over several.

The parts are named `PREFIX-00001-of-00003.gguf`, and say themselves which number they are and of how many. The first
has all metadata of the model.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from localinfer.files.gguf import GGUF, open_gguf
from localinfer.files.source import Field, Source, SourceTensor

NAME = re.compile(r"(?P<prefix>.*)-\d{5}-of-(?P<count>\d{5})\.gguf", re.DOTALL)
SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")


def from_gguf(path: Path) -> Source:
    """Open a file, and if it is a part of a model, whichever, all others with it.

    Raises LocalInferError with `<path>: <key or tensor>: <what is wrong>`.
    """
    parts = open_parts(path)
    fields = {key: field for key, field in fields_of(parts[0]).items() if key not in SPLIT_KEYS}
    tensors: dict[str, SourceTensor] = {}
    for number, part in enumerate(parts):
        for tensor in tensors_of(part, number):
            if tensor.name in tensors:
                raise part.error(tensor.name, "is in another part of the model, too")
            tensors[tensor.name] = tensor
    for part in parts:
        promised = part.get("split.tensors.count", int, len(tensors))
        if promised != len(tensors):
            raise part.error("split.tensors.count", f"{promised}, but {len(tensors)} tensors are in the parts")
    return Source(path, fields, tensors, tuple(part.path for part in parts))


def open_parts(path: Path) -> list[GGUF]:
    """The files of a model in their order, of which `path` is one."""
    opened = open_gguf(path, part=True)
    count = opened.get("split.count", int, 1)
    if count <= 1:
        return [opened]
    parts = [open_gguf(name, part=True) for name in names_of_parts(opened, count)]
    for number, part in enumerate(parts):
        if part.get("split.count", int, 1) != count:
            raise part.error("split.count", f"must be {count} as in the other parts")
        if part.get("split.no", int, 0) != number:
            raise part.error("split.no", f"must be {number} in the file of this name")
    return parts


def names_of_parts(part: GGUF, count: int) -> list[Path]:
    found = NAME.fullmatch(part.path.name)
    if not found or int(found["count"]) != count:
        raise part.error("split.count", f"a part of {count} must have a name that ends in -NNNNN-of-{count:05d}.gguf")
    return [part.path.with_name(name) for name in part_names(found["prefix"], count)]


def part_names(prefix: str, count: int) -> list[str]:
    """What the files of a split model are called."""
    return [f"{prefix}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def fields_of(f: GGUF) -> dict[str, Field]:
    """The metadata of a file, to the bit."""
    fields = {}
    for key, (begin, end) in f.spans.items():
        raw = f.file.map[begin:end]
        fields[key] = Field(int.from_bytes(raw[:4], "little"), raw[4:])
    return fields


def tensors_of(f: GGUF, number: int) -> Iterator[SourceTensor]:
    for tensor in f.tensors.values():
        load = partial(f.file.window, tensor.offset, tensor.nbytes)
        yield SourceTensor(tensor.name, tensor.shape, tensor.type, load, number)
