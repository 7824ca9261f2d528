"""Importance matrices: how strongly each column of a weight matrix is used, as llama.cpp keeps it in files.

For every matrix the squares of its inputs, summed up column by column, and how many inputs there were. Experts of one
tensor have a row each. Two forms of file are read and written; strings and numbers are little-endian:

    GGUF      tensors NAME.in_sum2, float32 (matrices, n), and NAME.counts, float32 (matrices, 1);
              keys imatrix.datasets, imatrix.chunk_count, imatrix.chunk_size (tokens).
              Ours also have, but not of experts, the main directions of inputs (`quant.encoders.directions`):
              NAME.in_dirs, float32 (directions, n). They may have covariances (`quant.encoders.covariance`):
              NAME.in_cov, float32 (n, n), the products of all pairs of inputs, summed up; and NAME.in_cov_chunks,
              float32 (1, 2), the sum of squares over chunks that tells how far to believe them, and the number of
              chunks. Matrices with the same inputs share all these: those of imatrix.inputs.names have what belongs to
              imatrix.inputs.owners, one by one.
    legacy    n_entries i32, then n_entries times: length i32, name, calls i32, n_values i32, float32[n_values],
              which are the means times `calls`; then chunk_count i32, length i32, data set. No sizes of chunks.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from localinfer.files.cursor import Cursor
from localinfer.files.gguf import GGUF, MAGIC, StringArray, open_gguf
from localinfer.files.mapped import MappedFile
from localinfer.files.safe_file import appearing
from localinfer.files.source import Field
from localinfer.files.writer import TensorInfo, lay_out
from localinfer.text import printable
from quant.encoders.covariance import Covariance
from quant.encoders.directions import Directions
from quant.encoders.low_rank import MOST

SUMS, COUNTS, DIRECTIONS, COVARIANCE, CHUNKS = ".in_sum2", ".counts", ".in_dirs", ".in_cov", ".in_cov_chunks"
NAMES, OWNERS = "imatrix.inputs.names", "imatrix.inputs.owners"
F32 = 0
Known = TypeVar("Known", Directions, Covariance)  # of the inputs of a tensor
Floats = NDArray[np.float32]
Pieces = Iterable[tuple[int, bytes]]  # of a file: where they begin, and what they are


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """Of one tensor: `sums` of squares (matrices, n), `counts` (matrices,), and if they are known the main directions
    of n inputs, and their covariance.

    Entries of tensors with the same inputs have the same of these, not some that are equal.
    """

    sums: Floats
    counts: Floats
    directions: Directions | None = None
    covariance: Covariance | None = None

    @property
    def means(self) -> Floats:
        """The mean square of each column's inputs, (matrices, n); 1 for experts that were never asked."""
        counts = self.counts[:, None]
        return np.where(counts > 0, self.sums / np.maximum(counts, 1), np.float32(1))


@dataclass(frozen=True, slots=True, eq=False)
class Imatrix:
    """`chunk_size` is 0 where a legacy file does not say it; its experts lie in one row, one behind the other."""

    entries: Mapping[str, Entry]
    datasets: tuple[str, ...] = ()
    chunk_count: int = 0
    chunk_size: int = 0


def read_imatrix(path: Path) -> Imatrix:
    """Read either form. Raises LocalInferError with `<path>: <entry>: <what is wrong>`."""
    file = MappedFile(path)
    if file.map[: len(MAGIC)] == MAGIC:
        return _from_gguf(open_gguf(path))
    return _from_legacy(file)


def write_imatrix(path: Path, imatrix: Imatrix, *, legacy: bool = False, replace: bool = False) -> None:
    """Write a file, whole or not at all; the legacy form loses covariances and sizes of chunks."""
    size, pieces = _as_legacy(imatrix) if legacy else _as_gguf(imatrix)
    with appearing({path: size}, replace=replace) as [file]:
        for place, piece in pieces:
            file.write_at(place, piece)


# --- GGUF ---


def _from_gguf(f: GGUF) -> Imatrix:
    names = [name.removesuffix(SUMS) for name in f.tensors if name.endswith(SUMS)]
    if not names:
        raise f.error("", "is a GGUF file, but no importance matrix: it has no tensor NAME.in_sum2")
    datasets: Iterable[bytes] = f.get("imatrix.datasets", StringArray, ())
    owners = _owners(f)
    directions, covariances = _owned(f, DIRECTIONS, _directions, owners), _owned(f, COVARIANCE, _covariance, owners)
    return Imatrix(
        {name: _entry(f, name, directions.get(name), covariances.get(name)) for name in names},
        tuple(text.decode("utf-8", "replace") for text in datasets),
        f.get("imatrix.chunk_count", int, 0),
        f.get("imatrix.chunk_size", int, 0),
    )


def _entry(f: GGUF, name: str, directions: Directions | None, covariance: Covariance | None) -> Entry:
    sums = _matrix(f, name + SUMS)
    counts = _matrix(f, name + COUNTS).reshape(-1)
    if len(counts) != len(sums):
        raise f.error(name + COUNTS, f"{len(counts)} counts for {len(sums)} matrices")
    n = sums.shape[1]
    if directions and directions.rows.shape[1] != n:
        raise f.error(name, f"has directions of {directions.rows.shape[1]} inputs, and {n} columns")
    if covariance and len(covariance.products) != n:
        raise f.error(name, f"has a covariance of {len(covariance.products)} inputs, and {n} columns")
    for suffix, values in ((SUMS, sums), (COUNTS, counts)):
        _check(f, name + suffix, values)
    return Entry(sums, counts, directions, covariance)


def _owners(f: GGUF) -> dict[str, str]:
    """Whose inputs those tensors have that do not own what is known of theirs."""
    names, owners = (
        [text.decode("utf-8", "replace") for text in f.get(key, StringArray, ())] for key in (NAMES, OWNERS)
    )
    if len(names) != len(owners):
        raise f.error(OWNERS, f"{len(owners)} owners of inputs for {len(names)} names")
    for owner in owners:
        if not any(owner + suffix in f.tensors for suffix in (DIRECTIONS, COVARIANCE)):
            raise f.error(OWNERS, f"{printable(owner)} has nothing to share")
    return dict(zip(names, owners, strict=True))


def _owned(f: GGUF, suffix: str, read: Callable[[GGUF, str], Known], owners: Mapping[str, str]) -> dict[str, Known]:
    """What is known of the inputs of all tensors that have it, views on the file; those that share it get the same."""
    own = [name.removesuffix(suffix) for name in f.tensors if name.endswith(suffix)]
    found = {name: read(f, name) for name in own}
    return found | {name: found[owner] for name, owner in owners.items() if owner in found}


def _directions(f: GGUF, name: str) -> Directions:
    rows = _matrix(f, name + DIRECTIONS)
    if len(rows) > MOST:
        raise f.error(name + DIRECTIONS, f"has {len(rows)} directions, at most {MOST} can be used")
    _check(f, name + DIRECTIONS, np.abs(rows))
    return Directions(rows)


def _covariance(f: GGUF, name: str) -> Covariance:
    products, chunks = _matrix(f, name + COVARIANCE), _matrix(f, name + CHUNKS)
    if products.shape[0] != products.shape[1]:
        raise f.error(name + COVARIANCE, f"is {products.shape[0]} x {products.shape[1]}, and no square")
    if chunks.size != 2:
        raise f.error(name + CHUNKS, f"has {chunks.size} values, not 2")
    _check(f, name + CHUNKS, chunks)
    return Covariance(products, float(chunks.flat[0]), int(chunks.flat[1]))


def _check(f: GGUF, name: str, values: Floats) -> None:
    if (bad := _first_bad(values)) is not None:
        raise f.error(name, f"value {bad} is {values.flat[bad]}")


def _matrix(f: GGUF, name: str) -> Floats:
    """A tensor of two dimensions, as a view on the file."""
    if name not in f.tensors:
        raise f.error(name, "is missing")
    tensor = f.tensors[name]
    if tensor.type != F32:
        raise f.error(name, f"is {tensor.type_name}, not F32")
    values: Floats = tensor.data.view(np.float32).reshape(-1, tensor.shape[-1])
    return values


def _as_gguf(imatrix: Imatrix) -> tuple[int, Pieces]:
    """The size of the file, and its pieces one by one: covariances are large."""
    fields = {
        "general.type": Field.text("imatrix"),
        "imatrix.datasets": Field.texts(imatrix.datasets),
        "imatrix.chunk_count": Field.uint32(imatrix.chunk_count),
        "imatrix.chunk_size": Field.uint32(imatrix.chunk_size),
    }
    tensors: dict[str, Floats] = {}
    owners: dict[tuple[Directions | None, Covariance | None], str] = {}
    shared: dict[str, str] = {}
    for name, entry in sorted(imatrix.entries.items()):
        tensors |= {name + SUMS: entry.sums, name + COUNTS: entry.counts.reshape(-1, 1)}
        owner = owners.setdefault((entry.directions, entry.covariance), name)
        if owner != name and (entry.directions or entry.covariance):
            shared[name] = owner
            continue
        if entry.directions:
            tensors[name + DIRECTIONS] = entry.directions.rows
        if entry.covariance:
            tensors |= {name + COVARIANCE: entry.covariance.products, name + CHUNKS: _chunks(entry.covariance)}
    if shared:
        fields |= {NAMES: Field.texts(list(shared)), OWNERS: Field.texts(list(shared.values()))}
    layout = lay_out(fields, [TensorInfo(name, values.shape, F32) for name, values in tensors.items()])
    data = ((layout.places[name], values.astype("<f4").tobytes()) for name, values in tensors.items())
    return layout.size, chain([(0, layout.header)], data)


def _chunks(covariance: Covariance) -> Floats:
    return np.array([[covariance.squares, covariance.chunks]], np.float32)


# --- the legacy form ---


def _from_legacy(file: MappedFile) -> Imatrix:
    cursor = Cursor(file, file.size)
    n_entries = cursor.integer(4, "entries")
    if not 1 <= n_entries <= file.size // 17:  # an entry of one letter and one value takes 17 bytes
        cursor.fail("entries", f"{n_entries} of them: this is no importance matrix")
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
    if (bad := _first_bad(values)) is not None:
        cursor.fail(name, f"value {bad} is {values[bad]}")
    return name, Entry(values.reshape(1, -1), np.array([max(calls, 1)], np.float32))


def _legacy_text(cursor: Cursor, field: str) -> str:
    length = cursor.integer(4, field)
    start = cursor.take(length, field)
    return cursor.text(cursor.file.map[start : start + length], field)


def _as_legacy(imatrix: Imatrix) -> tuple[int, Pieces]:
    parts = [struct.pack("<i", len(imatrix.entries))]
    for name, entry in sorted(imatrix.entries.items()):
        most = int(entry.counts.max(initial=0))
        calls = max(1, -(-most // imatrix.chunk_size) if imatrix.chunk_size else most)
        values = (entry.means * np.float32(calls)).astype("<f4")
        parts += [_legacy_string(name), struct.pack("<ii", calls, values.size), values.tobytes()]
    parts += [struct.pack("<i", imatrix.chunk_count), _legacy_string((imatrix.datasets or ("",))[-1])]
    content = b"".join(parts)
    return len(content), [(0, content)]


def _legacy_string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<i", len(raw)) + raw


def _first_bad(values: Floats) -> int | None:
    """The first that is no finite number, or is negative, if there is one."""
    good = np.isfinite(values) & (values >= 0)
    return None if good.all() else int(np.argmin(good))
