"""Quantizing: the tensors of a source, each in the type that was chosen for it, into one GGUF file.

    quantize(source, out, types, encoder_of=encoders(...), threads=2)

The work is cut into pieces of some rows. A thread decodes a piece, looks for what is no finite number, encodes it, and
writes it where it belongs, all in its core's cache; so the disk works while the cores do, and of a large tensor no more
is in memory than the pieces in hand. Every row is encoded by itself: the file does not depend on the threads. Which
type a tensor gets is decided in `localinfer.quantizing.mixture`.
"""

import math
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from localinfer import paths
from localinfer.errors import UsageError
from localinfer.files.part_names import NAME, part_names
from localinfer.files.safe_file import SafeFile, appearing, shown
from localinfer.files.source import Field, Source, SourceTensor
from localinfer.files.weights import decoding_kernel
from localinfer.files.writer import Layout, TensorInfo, lay_out
from localinfer.quantizing.crew import Crew
from localinfer.quantizing.rows import (
    Bytes,
    Floats,
    Matrix,
    Piece,
    decoder_of,
    error_in,
    load,
    matrices,
    pieces,
    read_rows,
)
from localinfer.text import printable
from quant import FORMATS, ggml
from quant.encoders.encode import Encoder, encoding_kernel
from quant.encoders.joint import JointLowRankEncoder, is_joint, joint_gains_of
from quant.encoders.low_rank import LowRankEncoder, carries, low_rank_kernels, tables_of
from quant.jit import loader

RowEncoder = Callable[[Floats, Bytes], None]  # x, (rows, n) -> out, (rows, row_bytes); by several threads at once
EncoderOf = Callable[[Matrix], RowEncoder]
Watcher = Callable[[Matrix, int, Floats, Bytes], None]  # matrix, its first row here, x, out; by several threads at once
T = TypeVar("T")
Find = Callable[[Floats, Floats], T]  # of mean squares, (n,), and directions, (n, r)
NEAR = 8  # inputs of matrices that lie near each other: a block has four, or some more
Progress = Callable[[SourceTensor, int], None]  # a tensor, and how many of its weights are done, in order


@dataclass(frozen=True, slots=True)
class Output:
    """A file to be written: its layout and what goes into it."""

    path: Path
    layout: Layout
    tensors: tuple[SourceTensor, ...]


def quantize(
    source: Source,
    out: Path,
    types: Mapping[str, int],
    *,
    encoder_of: EncoderOf,
    fields: Mapping[str, Field] | None = None,
    least_rows: int = 1,
    threads: int = 1,
    replace: bool = False,
    keep_split: bool = False,
    progress: Progress | None = None,
    watch: Watcher | None = None,
) -> list[Path]:
    """Write the source's tensors in the types, by ggml's number, and its metadata, or the `fields` instead.

    Every tensor is proven to have finite values. `encoder_of` is asked once for each matrix that changes its type, and
    gets at least so many rows at a time; the `watch` sees what went into it and what came out. With `keep_split`, OUT
    names the parts: OUT-00001-of-00003.gguf. Returns the files. Raises LocalInferError, and then nothing is left.
    """
    out = led_to(out) if out.is_symlink() else out  # the link stays, what it leads to is replaced
    outputs = outputs_of(source, out, types, source.fields if fields is None else fields, keep_split)
    for output in outputs:
        refuse_sources(source, output.path)
    sizes = {output.path: output.layout.size for output in outputs}
    with ExitStack() as stack:
        files = stack.enter_context(appearing(sizes, replace=replace))
        stack.enter_context(threadpool_limits(1, "blas"))  # the crew's threads are the ones that compute
        crew = stack.enter_context(Crew(threads))
        for file, output in zip(files, outputs, strict=True):
            file.write_at(0, output.layout.header)
            for tensor in output.tensors:
                job = Job(source, tensor, types[tensor.name], file, output.layout.places[tensor.name], watch)
                give(crew, job, encoder_of, least_rows, progress)
    return list(sizes)


def led_to(link: Path) -> Path:
    """Where a link leads, whether something is there or not."""
    end = Path(os.path.realpath(link))
    if end.is_symlink():
        raise UsageError(f"{shown(link)}: is a link that leads back to itself")
    return end


def outputs_of(
    source: Source, out: Path, types: Mapping[str, int], fields: Mapping[str, Field], keep_split: bool
) -> list[Output]:
    """The files that will be written: one, or one for each file of the source."""
    count = 1 + max((tensor.part for tensor in source.tensors.values()), default=0)
    if not keep_split or count == 1:
        return [_output(out, fields, types, list(source.tensors.values()))]
    found = NAME.fullmatch(out.name)
    names = part_names(found["prefix"] if found else out.name.removesuffix(".gguf"), count)
    outputs = []
    for number, name in enumerate(names):
        inside = [tensor for tensor in source.tensors.values() if tensor.part == number]
        split = {
            "split.no": Field.number(number, "<u2"),
            "split.count": Field.number(count, "<u2"),
            "split.tensors.count": Field.number(len(source.tensors), "<i4"),
        }
        outputs.append(_output(out.with_name(name), ({} if number else dict(fields)) | split, types, inside))
    return outputs


def _output(path: Path, fields: Mapping[str, Field], types: Mapping[str, int], tensors: list[SourceTensor]) -> Output:
    infos = [TensorInfo(tensor.name, tensor.shape, types[tensor.name]) for tensor in tensors]
    return Output(path, lay_out(fields, infos), tuple(tensors))


def refuse_sources(source: Source, out: Path) -> None:
    """What is written must be none of the files that are read, by whatever name."""
    for path in source.files:
        if out.exists() and path.samefile(out):
            raise UsageError(f"{shown(out)}: is {shown(path)}, which is read: choose another name")


# --- one tensor ---


@dataclass(frozen=True, slots=True)
class Job:
    """A tensor on its way to its place in a file."""

    source: Source
    tensor: SourceTensor
    type: int
    file: SafeFile
    place: int
    watch: Watcher | None


def give(crew: Crew, job: Job, encoder_of: EncoderOf, least_rows: int, progress: Progress | None) -> None:
    """Hand out all pieces of a tensor, of at least so many rows."""
    data = load(job.source, job.tensor)
    done = 0
    for matrix in matrices(job.tensor, job.type):
        encode = encoder_of(matrix) if job.type != job.tensor.type else None
        for piece in pieces(matrix, data, least_rows):
            done += math.prod(piece.shape)
            crew.give(partial(_do, job, piece, encode), partial(progress, job.tensor, done) if progress else None)


class _Room(threading.local):
    """Memory that a thread works in, kept from one piece to the next."""

    def __init__(self) -> None:
        self.floats, self.bytes = np.empty(0, np.float32), np.empty(0, np.uint8)

    def take(self, shape: tuple[int, int], type_number: int) -> tuple[Floats, Bytes]:
        """Room for rows as floats and in a type."""
        size = math.prod(shape)
        n_bytes = ggml.nbytes(type_number, size)
        if self.floats.size < size:
            self.floats = np.empty(size, np.float32)
        if self.bytes.size < n_bytes:
            self.bytes = np.empty(n_bytes, np.uint8)
        return self.floats[:size].reshape(shape), self.bytes[:n_bytes].reshape(shape[0], -1)


_ROOM = _Room()


def _do(job: Job, piece: Piece, encode: RowEncoder | None) -> None:
    """What is done with a piece, in one of the threads."""
    x, out = _ROOM.take(piece.shape, job.type)
    place = job.place + piece.row * ggml.nbytes(job.type, piece.matrix.n)
    large = read_rows(job.source, piece, x)
    if encode is None:
        job.file.write_at(place, piece.data.data)
        return
    encode(x, out)
    if large:
        _check_result(job, piece, x, out)
    if job.watch:
        job.watch(piece.matrix, piece.first, x, out)
    job.file.write_at(place, out.data)


def _check_result(job: Job, piece: Piece, x: Floats, out: Bytes) -> None:
    """Of rows with large values: warn if one was too large for the new type, raise if it is no finite number now."""
    back = np.empty_like(x)
    decoder_of(job.type).rows(out.reshape(-1), back)
    row, column = divmod(int(np.abs(x).argmax()), x.shape[1])
    before, after = x[row, column], back[row, column]
    place = piece.matrix.index(piece.first + row, column)
    lost = f"value {before:g} at {place} is too large for {ggml.TYPES[job.type].name}"
    if not np.isfinite(back).all():
        raise error_in(job.source, job.tensor, lost)
    if abs(after) < abs(before) / 2:
        warnings.warn(f"{printable(job.tensor.name)}: {lost}: it is {after:g} now", stacklevel=2)


# --- encoders ---


def compile_for(
    old: Iterable[int],
    new: Iterable[int],
    effort: str,
    progress: loader.Progress | None = None,
    *,
    directed: bool = False,
) -> None:
    """Have all kernels compiled that turn rows of the old types into rows of the new ones, several at a time; those for
    inputs that share directions, too, if some are `directed`."""
    kernels = [decoding_kernel(number) for number in {*old, *new} if number in FORMATS]
    kernels += [encoding_kernel(number, effort) for number in set(new)]
    if directed and effort != "fast":
        kernels += [kernel for number in set(new) for kernel in low_rank_kernels(number)]
    for warning in loader.addresses(kernels, paths.jit_dir(), progress)[1]:
        warnings.warn(warning, stacklevel=2)


def encoders(
    effort: str, importance: Mapping[str, Floats], directions: Mapping[str, Floats] | None = None
) -> EncoderOf:
    """Encode every row by itself. `importance`: for some tensors, the weights of the columns of each matrix;
    `directions`: for some of those with one matrix, what the columns' inputs have in common, (n, r)."""
    by_type = cache(partial(Encoder, effort=effort, cache_root=paths.jit_dir()))
    carrying = cache(partial(LowRankEncoder, cache_root=paths.jit_dir()))
    tables_for = partial(tables_of, cache_root=paths.jit_dir())
    known = known_of(importance, directions or {})

    def encoder_of(matrix: Matrix) -> RowEncoder:
        name = matrix.tensor.name
        weights = importance.get(name)
        row = None if weights is None else weights[matrix.number]
        if row is not None and directions and name in directions and effort != "fast":
            if carries(matrix.type):
                tables, mending = known(name, tables_for), carrying(matrix.type)
                return lambda x, out: mending.rows(x, tables, out)
            if is_joint(matrix.type):
                gains, decode = known(name, joint_gains_of), decoder_of(matrix.type).rows
                return JointLowRankEncoder(matrix.type, gains, decode, paths.jit_dir()).rows
        encoder = by_type(matrix.type)

        def encode(x: Floats, out: Bytes) -> None:
            encoder.rows(x, row, out)

        return encode

    return encoder_of


def known_of(importance: Mapping[str, Floats], directions: Mapping[str, Floats]) -> Callable[[str, Find[T]], T]:
    """A function that finds, of a tensor by name, what follows from its importance and directions: once for tensors
    that share the array of their directions, as long as they are near each other in a file."""
    owners = {id(shared): name for name, shared in directions.items()}

    @lru_cache(NEAR)
    def found(owner: str, find: Find[T]) -> T:
        return find(importance[owner][0], directions[owner])

    def known(name: str, find: Find[T]) -> T:
        result: T = found(owners[id(directions[name])], find)
        return result

    return known
