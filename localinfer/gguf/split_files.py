"""Split a model into several files, or join them to one: the bytes of tensors and metadata stay as they are.

    plan_split(from_gguf(path), out, max_tensors=128)      OUT-00001-of-00003.gguf, ...
    write_files(plan_joined(from_gguf(path), out))         one file

Only the first file has the model's metadata.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from localinfer.errors import UsageError
from localinfer.gguf.atomic_file import atomic_files, display_path
from localinfer.gguf.reader import DEFAULT_ALIGNMENT
from localinfer.gguf.source import Field, Source, SourceTensor
from localinfer.gguf.split_names import NAME, SPLIT_COUNT, SPLIT_NUMBER, SPLIT_TENSORS_COUNT, split_names
from localinfer.gguf.writer import Layout, TensorInfo, align, make_layout

MAX_FILES = 2**16 - 1  # split.count is a uint16
BLOCK = 64 << 20  # bytes of a tensor that are copied at once
Progress = Callable[[int, int], None]  # bytes that are written, bytes in all


@dataclass(frozen=True, slots=True)
class SplitFile:
    """A file to write: its layout and its tensors."""

    path: Path
    layout: Layout
    tensors: Sequence[SourceTensor]


def plan_joined(source: Source, out: Path) -> list[SplitFile]:
    """Return the file that holds the whole model."""
    return [plan_file(source, out, source.fields, [*source.tensors.values()])]


def plan_split(
    source: Source, out: Path, *, max_tensors: int = 0, max_bytes: int = 0, bare_first: bool = False
) -> list[SplitFile]:
    """Return the files of a split model, named after `out`.

    A file has at most `max_tensors` tensors, and `max_bytes` bytes of tensors unless one alone is larger; 0 is no
    limit. With `bare_first`, the first file has only metadata. Raises UsageError for too many files.
    """
    groups = [[], *group_tensors(source, max_tensors, max_bytes)][0 if bare_first else 1 :]
    if len(groups) > MAX_FILES:
        raise UsageError(f"{display_path(out)}: would be {len(groups):,} files; {MAX_FILES:,} are possible")
    files = []
    for number, (name, tensors) in enumerate(zip(split_names(split_prefix(out), len(groups)), groups, strict=True)):
        fields = (dict(source.fields) if number == 0 else {}) | split_fields(number, len(groups), len(source.tensors))
        files.append(plan_file(source, out.with_name(name), fields, tensors))
    return files


def group_tensors(source: Source, max_tensors: int, max_bytes: int) -> list[list[SourceTensor]]:
    """Return the tensors of each file, in the order of the source."""
    groups: list[list[SourceTensor]] = [[]]
    size = 0
    for tensor in source.tensors.values():
        n_bytes = align(tensor.nbytes, DEFAULT_ALIGNMENT)
        is_full = len(groups[-1]) == max_tensors or (0 < max_bytes < size + n_bytes)
        if groups[-1] and is_full:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += n_bytes
    return groups


def plan_file(source: Source, path: Path, fields: Mapping[str, Field], tensors: Sequence[SourceTensor]) -> SplitFile:
    """Return a file with these metadata and tensors. Raises UsageError if it is an input file."""
    source.require_not_input(path)
    infos = [TensorInfo(tensor.name, tensor.shape, tensor.type) for tensor in tensors]
    return SplitFile(path, make_layout(fields, infos), tensors)


def split_prefix(out: Path) -> str:
    """Return what the names of the files of a split model begin with."""
    match = NAME.fullmatch(out.name)
    return match["prefix"] if match else out.name.removesuffix(".gguf")


def split_fields(number: int, count: int, n_tensors: int) -> dict[str, Field]:
    """Return the metadata that each file of a split model has."""
    return {
        SPLIT_NUMBER: Field.number(number, "<u2"),
        SPLIT_COUNT: Field.number(count, "<u2"),
        SPLIT_TENSORS_COUNT: Field.number(n_tensors, "<i4"),
    }


def write_files(files: Sequence[SplitFile], *, replace: bool = False, progress: Progress | None = None) -> None:
    """Write the files, all or none. Raises LocalInferError."""
    sizes = {each.path: each.layout.size for each in files}
    done = 0
    with atomic_files(sizes, replace=replace) as outputs:
        for output, file in zip(outputs, files, strict=True):
            output.write_at(0, file.layout.header)
            for tensor in file.tensors:
                data, offset = tensor.load(), file.layout.offsets[tensor.name]
                for begin in range(0, len(data), BLOCK):
                    block = data[begin : begin + BLOCK]
                    output.write_at(offset + begin, block.data)
                    done += len(block)
                    if progress:
                        progress(done, sum(sizes.values()))
