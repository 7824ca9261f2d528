"""Importance matrix (imatrix) files, as llama.cpp writes them: the mean square of each matrix column's inputs.

For each matrix the file stores the squares of its inputs, summed per column, and the number of inputs. Experts of
one tensor have one row each. Two formats are read and written; strings and numbers are little-endian:

    GGUF      tensors NAME.in_sum2, float32 (matrices, n), and NAME.counts, float32 (matrices, 1);
              keys imatrix.datasets, imatrix.chunk_count, imatrix.chunk_size (tokens).
              Extensions of localinfer, not for experts: the principal components of the inputs
              (`quant.encoders.principal_components`), NAME.in_dirs, float32 (components, n); and optionally the
              covariance (`quant.encoders.covariance`), NAME.in_cov, float32 (n, n), the sum of the products of all
              pairs of inputs, with NAME.in_cov_chunks, float32 (1, 2): the sum of squares over chunks, which estimates
              the covariance's reliability, and the number of chunks. Matrices with the same inputs share these:
              each name in imatrix.inputs.names uses the data of the name at the same index of imatrix.inputs.owners.
    legacy    n_entries i32, then n_entries times: length i32, name, calls i32, n_values i32, float32[n_values],
              which are the means times `calls`; then chunk_count i32, length i32, data set. No chunk sizes.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from localinfer.escaping import printable
from localinfer.gguf.atomic_file import atomic_files
from localinfer.gguf.cursor import Cursor
from localinfer.gguf.mapped_file import MappedFile
from localinfer.gguf.reader import GGUF, MAGIC, StringArray, open_gguf
from localinfer.gguf.source import Field
from localinfer.gguf.writer import TensorInfo, make_layout
from quant.encoders.covariance import Covariance
from quant.encoders.low_rank import MAX_RANK
from quant.encoders.principal_components import PrincipalComponents

SUMS, COUNTS, COMPONENTS, COVARIANCE, CHUNKS = ".in_sum2", ".counts", ".in_dirs", ".in_cov", ".in_cov_chunks"
NAMES, OWNERS = "imatrix.inputs.names", "imatrix.inputs.owners"
F32 = 0
Known = TypeVar("Known", PrincipalComponents, Covariance)  # statistics of a tensor's inputs
Floats = NDArray[np.float32]
Pieces = Iterable[tuple[int, bytes]]  # the pieces of a file: offset and bytes


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """The statistics of one tensor: `sums` of squares (matrices, n), `counts` (matrices,), and optionally the principal
    components and the covariance of its n inputs.

    Entries of tensors with the same inputs share the same component and covariance objects.
    """

    sums: Floats
    counts: Floats
    components: PrincipalComponents | None = None
    covariance: Covariance | None = None

    @property
    def means(self) -> Floats:
        """The mean square of each column's inputs, (matrices, n); 1 for experts that received no tokens."""
        counts = self.counts[:, None]
        return np.where(counts > 0, self.sums / np.maximum(counts, 1), np.float32(1))


@dataclass(frozen=True, slots=True, eq=False)
class Imatrix:
    """An importance matrix. `chunk_size` is 0 if a legacy file does not state it; legacy experts are concatenated in
    one row.
    """

    entries: Mapping[str, Entry]
    datasets: tuple[str, ...] = ()
    chunk_count: int = 0
    chunk_size: int = 0


def read_imatrix(path: Path) -> Imatrix:
    """Read either format. Raises LocalInferError with `<path>: <entry>: <what is wrong>`."""
    file = MappedFile(path)
    if file.map[: len(MAGIC)] == MAGIC:
        return _from_gguf(open_gguf(path))
    return _from_legacy(file)


def write_imatrix(path: Path, imatrix: Imatrix, *, legacy: bool = False, replace: bool = False) -> None:
    """Write the file atomically. The legacy format drops covariances and chunk sizes."""
    size, pieces = _as_legacy(imatrix) if legacy else _as_gguf(imatrix)
    with atomic_files({path: size}, replace=replace) as [file]:
        for offset, piece in pieces:
            file.write_at(offset, piece)


# --- GGUF ---


def _from_gguf(f: GGUF) -> Imatrix:
    names = [name.removesuffix(SUMS) for name in f.tensors if name.endswith(SUMS)]
    if not names:
        raise f.error("", "is a GGUF file, but not an importance matrix: it has no tensor NAME.in_sum2")
    datasets: Iterable[bytes] = f.get("imatrix.datasets", StringArray, ())
    owners = _owners(f)
    components, covariances = (
        _input_statistics(f, COMPONENTS, _components, owners),
        _input_statistics(f, COVARIANCE, _covariance, owners),
    )
    return Imatrix(
        {name: _entry(f, name, components.get(name), covariances.get(name)) for name in names},
        tuple(text.decode("utf-8", "replace") for text in datasets),
        f.get("imatrix.chunk_count", int, 0),
        f.get("imatrix.chunk_size", int, 0),
    )


def _entry(f: GGUF, name: str, components: PrincipalComponents | None, covariance: Covariance | None) -> Entry:
    sums = _matrix(f, name + SUMS)
    counts = _matrix(f, name + COUNTS).reshape(-1)
    if len(counts) != len(sums):
        raise f.error(name + COUNTS, f"{len(counts)} counts for {len(sums)} matrices")
    n = sums.shape[1]
    if components and components.rows.shape[1] != n:
        raise f.error(name, f"has principal components of {components.rows.shape[1]} inputs, but {n} columns")
    if covariance and len(covariance.products) != n:
        raise f.error(name, f"has a covariance of {len(covariance.products)} inputs, and {n} columns")
    for suffix, values in ((SUMS, sums), (COUNTS, counts)):
        _check(f, name + suffix, values)
    return Entry(sums, counts, components, covariance)


def _owners(f: GGUF) -> dict[str, str]:
    """Return a map from tensor names to the tensor whose input statistics they share."""
    names, owners = (
        [text.decode("utf-8", "replace") for text in f.get(key, StringArray, ())] for key in (NAMES, OWNERS)
    )
    if len(names) != len(owners):
        raise f.error(OWNERS, f"{len(owners)} owners of inputs for {len(names)} names")
    for owner in owners:
        if not any(owner + suffix in f.tensors for suffix in (COMPONENTS, COVARIANCE)):
            raise f.error(OWNERS, f"{printable(owner)} has no statistics to share")
    return dict(zip(names, owners, strict=True))


def _input_statistics(
    f: GGUF, suffix: str, read: Callable[[GGUF, str], Known], owners: Mapping[str, str]
) -> dict[str, Known]:
    """Return the input statistics of all tensors that have them, as views on the file; sharing tensors get the same
    object.
    """
    stored_names = [name.removesuffix(suffix) for name in f.tensors if name.endswith(suffix)]
    statistics = {name: read(f, name) for name in stored_names}
    return statistics | {name: statistics[owner] for name, owner in owners.items() if owner in statistics}


def _components(f: GGUF, name: str) -> PrincipalComponents:
    rows = _matrix(f, name + COMPONENTS)
    if len(rows) > MAX_RANK:
        raise f.error(name + COMPONENTS, f"has {len(rows)} components, at most {MAX_RANK} are supported")
    _check(f, name + COMPONENTS, np.abs(rows))
    return PrincipalComponents(rows)


def _covariance(f: GGUF, name: str) -> Covariance:
    products, chunks = _matrix(f, name + COVARIANCE), _matrix(f, name + CHUNKS)
    if products.shape[0] != products.shape[1]:
        raise f.error(name + COVARIANCE, f"is {products.shape[0]} x {products.shape[1]}, not square")
    if chunks.size != 2:
        raise f.error(name + CHUNKS, f"has {chunks.size} values, not 2")
    _check(f, name + CHUNKS, chunks)
    return Covariance(products, float(chunks.flat[0]), int(chunks.flat[1]))


def _check(f: GGUF, name: str, values: Floats) -> None:
    if (bad := _first_invalid(values)) is not None:
        raise f.error(name, f"value {bad} is {values.flat[bad]}")


def _matrix(f: GGUF, name: str) -> Floats:
    """Return a two-dimensional F32 tensor as a view on the file."""
    if name not in f.tensors:
        raise f.error(name, "is missing")
    tensor = f.tensors[name]
    if tensor.type != F32:
        raise f.error(name, f"is {tensor.type_name}, not F32")
    values: Floats = tensor.data.view(np.float32).reshape(-1, tensor.shape[-1])
    return values


def _as_gguf(imatrix: Imatrix) -> tuple[int, Pieces]:
    """Return the file size and its pieces, generated one by one because covariances are large."""
    fields = {
        "general.type": Field.text("imatrix"),
        "imatrix.datasets": Field.texts(imatrix.datasets),
        "imatrix.chunk_count": Field.uint32(imatrix.chunk_count),
        "imatrix.chunk_size": Field.uint32(imatrix.chunk_size),
    }
    tensors: dict[str, Floats] = {}
    owners: dict[tuple[PrincipalComponents | None, Covariance | None], str] = {}
    shared: dict[str, str] = {}
    for name, entry in sorted(imatrix.entries.items()):
        tensors |= {name + SUMS: entry.sums, name + COUNTS: entry.counts.reshape(-1, 1)}
        owner = owners.setdefault((entry.components, entry.covariance), name)
        if owner != name and (entry.components or entry.covariance):
            shared[name] = owner
            continue
        if entry.components:
            tensors[name + COMPONENTS] = entry.components.rows
        if entry.covariance:
            tensors |= {name + COVARIANCE: entry.covariance.products, name + CHUNKS: _chunks(entry.covariance)}
    if shared:
        fields |= {NAMES: Field.texts(list(shared)), OWNERS: Field.texts(list(shared.values()))}
    layout = make_layout(fields, [TensorInfo(name, values.shape, F32) for name, values in tensors.items()])
    data = ((layout.offsets[name], values.astype("<f4").tobytes()) for name, values in tensors.items())
    return layout.size, chain([(0, layout.header)], data)


def _chunks(covariance: Covariance) -> Floats:
    return np.array([[covariance.chunk_squares, covariance.chunks]], np.float32)


# --- legacy format ---


def _from_legacy(file: MappedFile) -> Imatrix:
    cursor = Cursor(file, file.size)
    n_entries = cursor.integer(4, "entries")
    if not 1 <= n_entries <= file.size // 17:  # an entry with a one-letter name and one value takes 17 bytes
        cursor.fail("entries", f"{n_entries}: this is not an importance matrix")
    entries = dict(_legacy_entry(cursor, number) for number in range(n_entries))
    if not cursor.remaining:
        return Imatrix(entries)
    chunk_count = cursor.integer(4, "chunks")
    return Imatrix(entries, (_legacy_text(cursor, "data set"),) if cursor.remaining else (), chunk_count)


def _legacy_entry(cursor: Cursor, number: int) -> tuple[str, Entry]:
    name = _legacy_text(cursor, f"entry {number}")
    calls, n_values = cursor.integer(4, name), cursor.integer(4, name)
    if not n_values:
        cursor.fail(name, "has no values")
    values = cursor.numbers(np.dtype("<f4"), n_values, name).astype(np.float32)
    if (bad := _first_invalid(values)) is not None:
        cursor.fail(name, f"value {bad} is {values[bad]}")
    return name, Entry(values.reshape(1, -1), np.array([max(calls, 1)], np.float32))


def _legacy_text(cursor: Cursor, field: str) -> str:
    length = cursor.integer(4, field)
    start = cursor.take(length, field)
    return cursor.text(cursor.file.map[start : start + length], field)


def _as_legacy(imatrix: Imatrix) -> tuple[int, Pieces]:
    pieces = [struct.pack("<i", len(imatrix.entries))]
    for name, entry in sorted(imatrix.entries.items()):
        most = int(entry.counts.max(initial=0))
        calls = max(1, -(-most // imatrix.chunk_size) if imatrix.chunk_size else most)
        values = (entry.means * np.float32(calls)).astype("<f4")
        pieces += [_legacy_string(name), struct.pack("<ii", calls, values.size), values.tobytes()]
    pieces += [struct.pack("<i", imatrix.chunk_count), _legacy_string((imatrix.datasets or ("",))[-1])]
    content = b"".join(pieces)
    return len(content), [(0, content)]


def _legacy_string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<i", len(raw)) + raw


def _first_invalid(values: Floats) -> int | None:
    """Return the index of the first value that is not finite or is negative, or None."""
    good = np.isfinite(values) & (values >= 0)
    return None if good.all() else int(np.argmin(good))
