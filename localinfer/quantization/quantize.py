"""Quantization: convert the tensors of a source to their chosen types and write one GGUF file.

    quantize(source, out, types, encoder_factory=make_encoder_factory(...), threads=2)

Tensors are processed in slices of rows. A worker thread decodes a slice, checks that its values are finite, encodes it
and writes it at its offset in the file, all within the core's cache. So disk writes overlap with computation, and only
the slices in progress of a large tensor are in memory. Rows are encoded independently, so the file does not depend on
the number of threads. `localinfer.quantization.plan` decides the type of each tensor.
"""

import math
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from localinfer import paths
from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.gguf.atomic_file import AtomicFile, atomic_files, display_path
from localinfer.gguf.dequantize import get_rows_kernel
from localinfer.gguf.source import Field, Source, SourceTensor
from localinfer.gguf.split_files import split_fields, split_prefix
from localinfer.gguf.split_names import split_names
from localinfer.gguf.writer import Layout, TensorInfo, make_layout
from localinfer.quantization.conversion_check import require_runnable
from localinfer.quantization.rows import (
    Bytes,
    Floats,
    Matrix,
    RowSlice,
    check_values,
    get_decoder,
    load_bytes,
    matrices,
    read_rows,
    row_slices,
    tensor_error,
)
from localinfer.quantization.tensor_scales import TensorScales
from localinfer.quantization.worker_pool import WorkerPool
from quant import FORMATS, ggml
from quant.encoders.block_feedback import BlockLowRankEncoder, compute_block_gains, is_codebook_type
from quant.encoders.encoder import Encoder, encoder_kernel
from quant.encoders.low_rank import LANES, LowRankEncoder, low_rank_kernels, make_tables, supports_low_rank
from quant.jit import loader

RowEncoder = Callable[[Floats, Bytes], None]  # x, (rows, n) -> out, (rows, row_bytes); thread-safe
RowObserver = Callable[[Matrix, int, Floats, Bytes], None]  # matrix, first row, x, out; must be thread-safe
T = TypeVar("T")
NO_SCALES: Mapping[str, TensorScales] = {}
InputFunction = Callable[[Floats, Floats], T]  # arguments: mean squares, (n,), and components, (n, r)
CACHED_INPUTS = 8  # results of cached_per_tensor; the matrices of a layer have about four different inputs
Progress = Callable[[SourceTensor, int], None]  # tensor, number of its weights that are done; called in order


@dataclass(frozen=True, slots=True)
class EncoderFactory:
    """Creates the encoder of a matrix, which encodes at least `min_rows` rows at a time, or all rows of the matrix."""

    make_encoder: Callable[[Matrix], RowEncoder]
    min_rows: int = 1

    def __call__(self, matrix: Matrix) -> RowEncoder:
        """Return the encoder of a matrix."""
        return self.make_encoder(matrix)


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Options of the files to write.

    `replace` allows existing files to be replaced. With `keep_split`, there is one file for each file of the source,
    named OUT-00001-of-00003.gguf and so on. `architecture_file` is the user's Python file of the compute graph.
    """

    replace: bool = False
    keep_split: bool = False
    architecture_file: str = ""


NEW_FILE = OutputOptions()


@dataclass(frozen=True, slots=True)
class Output:
    """A file to write: its layout and its tensors."""

    path: Path
    layout: Layout
    tensors: tuple[SourceTensor, ...]


def quantize(
    source: Source,
    out: Path,
    types: Mapping[str, int],
    *,
    encoder_factory: EncoderFactory,
    scales: Mapping[str, TensorScales] = NO_SCALES,
    threads: int = 1,
    options: OutputOptions = NEW_FILE,
    progress: Progress | None = None,
    observer: RowObserver | None = None,
) -> list[Path]:
    """Write the source's tensors, converted to `types`, and its metadata. Return the paths of the files.

    `types` maps tensor names to ggml type numbers, and `scales` to factors. Every value is checked to be finite.
    `encoder_factory` is called once for each matrix that changes its type or has factors. The `observer` receives each
    slice before and after encoding. A converted checkpoint must be a model that can be run. Raises LocalInferError and
    then leaves no file behind.
    """
    out = resolve_symlink(out) if out.is_symlink() else out  # replace the target of the link, not the link
    outputs = plan_outputs(source, out, types, options.keep_split)
    for output in outputs:
        source.require_not_input(output.path)
    sizes = {output.path: output.layout.size for output in outputs}
    with atomic_files(sizes, replace=options.replace) as files:
        with threadpool_limits(1, "blas"), WorkerPool(threads) as pool:  # the worker threads already use all cores
            for file, output in zip(files, outputs, strict=True):
                file.write_at(0, output.layout.header)
                for tensor in output.tensors:
                    offset = output.layout.offsets[tensor.name]
                    job = TensorJob(
                        source, tensor, types[tensor.name], file, offset, observer, scales.get(tensor.name)
                    )
                    submit_tensor(pool, job, encoder_factory, progress)
        if source.path.is_dir():  # a checkpoint, which has no other proof that its model can be run
            require_runnable(files[0].temporary, source.path, options.architecture_file)
    return list(sizes)


def resolve_symlink(link: Path) -> Path:
    """Return the path that a symbolic link leads to, whether or not it exists."""
    end = Path(os.path.realpath(link))
    if end.is_symlink():
        raise UsageError(f"{display_path(link)}: is a symbolic link to itself")
    return end


def plan_outputs(source: Source, out: Path, types: Mapping[str, int], keep_split: bool) -> list[Output]:
    """Return the files to write: one, or one for each file of the source."""
    fields = source.fields
    count = 1 + max((tensor.split_index for tensor in source.tensors.values()), default=0)
    if not keep_split or count == 1:
        return [_output(out, fields, types, list(source.tensors.values()))]
    outputs = []
    for number, name in enumerate(split_names(split_prefix(out), count)):
        tensors = [tensor for tensor in source.tensors.values() if tensor.split_index == number]
        split = split_fields(number, count, len(source.tensors))
        outputs.append(_output(out.with_name(name), ({} if number else dict(fields)) | split, types, tensors))
    return outputs


def _output(path: Path, fields: Mapping[str, Field], types: Mapping[str, int], tensors: list[SourceTensor]) -> Output:
    infos = [TensorInfo(tensor.name, tensor.shape, types[tensor.name]) for tensor in tensors]
    return Output(path, make_layout(fields, infos), tuple(tensors))


# --- one tensor ---


@dataclass(frozen=True, slots=True)
class TensorJob:
    """A tensor, its type, its position in the output file, and its factors, if any."""

    source: Source
    tensor: SourceTensor
    type: int
    file: AtomicFile
    offset: int
    observer: RowObserver | None
    scales: TensorScales | None = None


def submit_tensor(
    pool: WorkerPool, job: TensorJob, encoder_factory: EncoderFactory, progress: Progress | None
) -> None:
    """Submit all slices of a tensor, of at least as many rows each as the encoders need."""
    data = load_bytes(job.source, job.tensor)
    done = 0
    for matrix in matrices(job.tensor, job.type):
        encode = encoder_factory(matrix) if job.type != job.tensor.type or job.scales else None
        for row_slice in row_slices(matrix, data, encoder_factory.min_rows):
            done += math.prod(row_slice.shape)
            pool.submit(
                partial(_encode_slice, job, row_slice, encode),
                partial(progress, job.tensor, done) if progress else None,
            )


class _Scratch(threading.local):
    """Buffers of one thread, reused from slice to slice."""

    def __init__(self) -> None:
        self.floats, self.bytes = np.empty(0, np.float32), np.empty(0, np.uint8)

    def buffers(self, shape: tuple[int, int], type_number: int) -> tuple[Floats, Bytes]:
        """Return buffers for rows as float32 and as encoded rows."""
        size = math.prod(shape)
        n_bytes = ggml.nbytes(type_number, shape)
        if self.floats.size < size:
            self.floats = np.empty(size, np.float32)
        if self.bytes.size < n_bytes:
            self.bytes = np.empty(n_bytes, np.uint8)
        return self.floats[:size].reshape(shape), self.bytes[:n_bytes].reshape(shape[0], -1)


_SCRATCH = _Scratch()


def _encode_slice(job: TensorJob, row_slice: RowSlice, encode: RowEncoder | None) -> None:
    """Decode, check, encode and write a slice, in a worker thread."""
    x, out = _SCRATCH.buffers(row_slice.shape, job.type)
    offset = job.offset + row_slice.row * ggml.nbytes(job.type, [row_slice.matrix.n])
    large = read_rows(job.source, row_slice, x)
    if job.scales:
        job.scales.apply(x, row_slice.first)
        large = check_values(job.source, row_slice.matrix, row_slice.numbers, x)
    if encode is None:
        job.file.write_at(offset, row_slice.data.data)
        return
    encode(x, out)
    if large:
        _check_result(job, row_slice, x, out)
    if job.observer:
        job.observer(row_slice.matrix, row_slice.first, x, out)
    job.file.write_at(offset, out.data)


def _check_result(job: TensorJob, row_slice: RowSlice, x: Floats, out: Bytes) -> None:
    """Check rows with large values: raise if a decoded value is not finite, warn if the largest one was clipped."""
    decoded = np.empty_like(x)
    get_decoder(job.type).rows(out.reshape(-1), decoded)
    row, column = divmod(int(np.abs(x).argmax()), x.shape[1])
    before, after = x[row, column], decoded[row, column]
    index = row_slice.matrix.index(row_slice.first + row, column)
    problem = f"value {before:g} at {index} is too large for {ggml.TYPES[job.type].name}"
    if not np.isfinite(decoded).all():
        raise tensor_error(job.source, job.tensor, problem)
    if abs(after) < abs(before) / 2:
        warnings.warn(f"{printable(job.tensor.name)}: {problem}: it became {after:g}", stacklevel=2)


# --- encoders ---


def compile_kernels(
    old: Iterable[int],
    new: Iterable[int],
    effort: str,
    progress: loader.Progress | None = None,
    *,
    low_rank: bool = False,
) -> None:
    """Compile in parallel all kernels that convert rows of the old types to the new ones.

    `low_rank`: also compile those for low-rank error feedback.
    """
    kernels = [get_rows_kernel(number) for number in {*old, *new} if number in FORMATS]
    kernels += [encoder_kernel(number, effort) for number in set(new)]
    if low_rank and effort != "fast":
        kernels += [kernel for number in set(new) for kernel in low_rank_kernels(number)]
    for warning in loader.load_kernels(kernels, paths.jit_dir(), progress)[1]:
        warnings.warn(warning, stacklevel=2)


def make_encoder_factory(
    effort: str, importance: Mapping[str, Floats], components: Mapping[str, Floats] | None = None
) -> EncoderFactory:
    """Return a factory of encoders that encode every row independently.

    `importance` maps tensor names to column weights, (matrices, n). `components` maps the names of some tensors with
    one matrix to the principal components of their inputs, (n, r).
    """
    by_type = cache(partial(Encoder, effort=effort, cache_root=paths.jit_dir()))
    low_rank_by_type = cache(partial(LowRankEncoder, cache_root=paths.jit_dir()))
    tables_for = partial(make_tables, cache_root=paths.jit_dir())
    cached = cached_per_tensor(importance, components or {})

    def make_encoder(matrix: Matrix) -> RowEncoder:
        name = matrix.tensor.name
        weights = importance.get(name)
        row = None if weights is None else weights[matrix.number]
        if row is not None and components and name in components and effort != "fast":
            if supports_low_rank(matrix.type):
                tables, low_rank_encoder = cached(name, tables_for), low_rank_by_type(matrix.type)
                return lambda x, out: low_rank_encoder.encode(x, tables, out)
            if is_codebook_type(matrix.type):
                gains, decode = cached(name, compute_block_gains), get_decoder(matrix.type).rows
                return BlockLowRankEncoder(matrix.type, gains, decode, paths.jit_dir()).encode
        encoder = by_type(matrix.type)

        def encode(x: Floats, out: Bytes) -> None:
            encoder.encode(x, row, out)

        return encode

    return EncoderFactory(make_encoder, LANES if components else 1)


def cached_per_tensor(
    importance: Mapping[str, Floats], components: Mapping[str, Floats]
) -> Callable[[str, InputFunction[T]], T]:
    """Return a function that computes a result from the importance and components of a tensor, by name.

    The result is cached for tensors that share the array of their components, if they are close to each other in a
    file.
    """
    owners = {id(array): name for name, array in components.items()}

    @lru_cache(CACHED_INPUTS)
    def compute(owner: str, find: InputFunction[T]) -> T:
        return find(importance[owner][0], components[owner])

    def compute_cached(name: str, find: InputFunction[T]) -> T:
        result: T = compute(owners[id(components[name])], find)
        return result

    return compute_cached
