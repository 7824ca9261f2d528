"""Both importance matrix formats: files of llama.cpp can be read, and written files are compatible."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from localinfer.errors import LocalInferError
from localinfer.gguf.imatrix_file import Entry, Imatrix, read_imatrix, write_imatrix
from quant.encoders.covariance import Covariance
from quant.encoders.principal_components import PrincipalComponents

RNG = np.random.default_rng(0)
Q = Entry(RNG.random((1, 8), np.float32), np.array([4], np.float32))
EXPERTS = Entry(RNG.random((3, 8), np.float32), np.array([4, 0, 2], np.float32))
BOTH = Imatrix({"blk.0.attn_q.weight": Q, "blk.0.ffn_up_exps.weight": EXPERTS}, ("a.txt", "b.txt"), 2, 512)


def same(one: Entry, other: Entry) -> bool:
    return np.array_equal(one.sums, other.sums) and np.array_equal(one.counts, other.counts)


def test_gguf_round_trip(tmp_path: Path) -> None:
    write_imatrix(tmp_path / "m.gguf", BOTH)
    back = read_imatrix(tmp_path / "m.gguf")
    assert (back.datasets, back.chunk_count, back.chunk_size) == (("a.txt", "b.txt"), 2, 512)
    assert list(back.entries) == list(BOTH.entries)
    assert all(same(back.entries[name], BOTH.entries[name]) for name in BOTH.entries)


def test_gguf_as_the_package_reads_it(tmp_path: Path) -> None:
    write_imatrix(tmp_path / "m.gguf", BOTH)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    shapes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    assert shapes == {
        "blk.0.attn_q.weight.in_sum2": [8, 1], "blk.0.attn_q.weight.counts": [1, 1],
        "blk.0.ffn_up_exps.weight.in_sum2": [8, 3], "blk.0.ffn_up_exps.weight.counts": [1, 3],
    }  # fmt: skip
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.datasets"].contents() == ["a.txt", "b.txt"]
    assert np.array_equal(reader.tensors[2].data, EXPERTS.sums)


def test_covariance_round_trip(tmp_path: Path) -> None:
    covariance = Covariance(RNG.random((8, 8), np.float32), 12.5, 3)
    write_imatrix(tmp_path / "m.gguf", Imatrix({"x": Entry(Q.sums, Q.counts, None, covariance)}))
    back = read_imatrix(tmp_path / "m.gguf").entries["x"].covariance
    assert back is not None
    assert np.array_equal(back.products, covariance.products)
    assert (back.chunk_squares, back.chunks) == (12.5, 3)


def test_shared_input_statistics_are_stored_once(tmp_path: Path) -> None:
    shared, own = (Covariance(RNG.random((8, 8), np.float32), number, 3) for number in (1.0, 2.0))
    some, others = (PrincipalComponents(RNG.standard_normal((4, 8)).astype(np.float32)) for _ in range(2))
    of = {"k": (some, shared), "q": (some, shared), "v": (some, shared), "o": (others, own), "x": (others, None)}
    matrix = Imatrix({name: Entry(Q.sums, Q.counts, *known) for name, known in (of | {"none": (None, None)}).items()})
    write_imatrix(tmp_path / "m.gguf", matrix)
    stored = {tensor.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors if ".in_sum2" not in tensor.name}
    covariances = {"k.in_cov", "k.in_cov_chunks", "o.in_cov", "o.in_cov_chunks"}
    assert {name for name in stored if "counts" not in name} == covariances | {"k.in_dirs", "o.in_dirs", "x.in_dirs"}
    back = read_imatrix(tmp_path / "m.gguf").entries
    assert back["k"].covariance is back["q"].covariance is back["v"].covariance
    assert back["k"].components is back["q"].components is back["v"].components
    assert back["o"].covariance is not back["k"].covariance
    for name, (components, covariance) in of.items():
        assert np.array_equal(back[name].components.rows, components.rows)
        assert (back[name].covariance is None) == (covariance is None)
    assert (back["none"].components, back["none"].covariance) == (None, None)


@pytest.mark.parametrize(
    ("tensors", "keys", "problem"),
    [
        ({"x.in_cov": (3, 2)}, {}, "x.in_cov: is 3 x 2, not square"),
        ({"x.in_cov": (3, 3)}, {}, "x: has a covariance of 3 inputs, and 2 columns"),
        ({"x.in_cov": (2, 2), "x.in_cov_chunks": (1, 3)}, {}, "x.in_cov_chunks: has 3 values, not 2"),
        ({"x.in_cov": (2, 2), "x.in_cov_chunks": None}, {}, "x.in_cov_chunks: is missing"),
        ({"x.in_dirs": (4, 3)}, {}, "x: has principal components of 3 inputs, but 2 columns"),
        ({"x.in_dirs": (257, 2)}, {}, "x.in_dirs: has 257 components, at most 256"),
        ({}, {"names": ["x"], "owners": ["y"]}, "owners: y has no statistics to share"),
        ({"x.in_cov": (2, 2)}, {"names": ["x"]}, "owners: 0 owners of inputs for 1 names"),
    ],
)
def test_broken_input_statistics(
    tmp_path: Path, tensors: dict[str, tuple[int, int] | None], keys: dict[str, list[str]], problem: str
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "imatrix")
    shapes = {"x.in_sum2": (1, 2), "x.counts": (1, 1), "x.in_cov_chunks": (1, 2)} | tensors
    for name, shape in shapes.items():
        if shape:
            writer.add_tensor(name, np.ones(shape, np.float32))
    for key, values in keys.items():
        writer.add_array(f"imatrix.inputs.{key}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(LocalInferError, match=problem):
        read_imatrix(tmp_path / "m.gguf")


def test_means() -> None:
    assert np.array_equal(Q.means, Q.sums / 4)
    assert np.array_equal(EXPERTS.means, np.stack([EXPERTS.sums[0] / 4, np.ones(8), EXPERTS.sums[2] / 2]))


def legacy(*entries: tuple[bytes, int, list[float]], tail: bytes = b"") -> bytes:
    """Return a file in the format of old versions of llama-imatrix."""
    parts = [struct.pack("<i", len(entries))]
    for name, calls, values in entries:
        head = struct.pack("<i", len(name)) + name + struct.pack("<ii", calls, len(values))
        parts.append(head + struct.pack(f"<{len(values)}f", *values))
    return b"".join(parts) + tail


def test_read_legacy_format(tmp_path: Path) -> None:
    tail = struct.pack("<ii", 7, 5) + b"a.txt"
    (tmp_path / "m.dat").write_bytes(legacy((b"x", 2, [1, 2, 3]), (b"yy", 1, [4]), tail=tail))
    actual = read_imatrix(tmp_path / "m.dat")
    assert (actual.datasets, actual.chunk_count, actual.chunk_size) == (("a.txt",), 7, 0)
    assert {name: entry.means.tolist() for name, entry in actual.entries.items()} == {"x": [[0.5, 1, 1.5]], "yy": [[4]]}


def test_legacy_format_without_tail(tmp_path: Path) -> None:
    (tmp_path / "m.dat").write_bytes(legacy((b"x", 0, [1])))
    actual = read_imatrix(tmp_path / "m.dat")
    assert actual.entries["x"].means.tolist() == [[1]]
    assert actual.datasets == ()


def test_write_legacy_format(tmp_path: Path) -> None:
    entry = Entry(np.full((1, 2), 3000, np.float32), np.array([1000], np.float32))
    write_imatrix(tmp_path / "m.dat", Imatrix({"x": entry}, ("a.txt",), 2, 512), legacy=True)
    expected = legacy((b"x", 2, [6, 6]), tail=struct.pack("<ii", 2, 5) + b"a.txt")
    assert (tmp_path / "m.dat").read_bytes() == expected


def test_means_survive_legacy_format(tmp_path: Path) -> None:
    write_imatrix(tmp_path / "m.dat", BOTH, legacy=True)
    back = read_imatrix(tmp_path / "m.dat")
    for name, entry in BOTH.entries.items():
        assert np.allclose(back.entries[name].means.reshape(entry.means.shape), entry.means, rtol=1e-6)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\0\0\0\0", "entries: 0: this is"),
        (b"\xff\xff\xff\xff", "entries: 4294967295: this is"),
        (b"hello, this is a text and no matrix at all", "this is not an importance matrix"),
        (b"\x01\0\0\0\xff\xff\xff\x7f", "not an importance matrix"),
        (legacy((b"x", 1, [1, 2]))[:-1], "x: 8 bytes are needed"),
        (legacy((b"x", 1, [])) + bytes(8), "x: has no values"),
        (legacy((b"x", 1, [1, float("nan")])), "x: value 1 is nan"),
        (legacy((b"x", 1, [-1])), r"x: value 0 is -1\.0"),
        (legacy((b"\xff", 1, [1])), "entry 0: is not valid UTF-8"),
    ],
)
def test_broken_legacy_files(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "m.dat"
    path.write_bytes(content)
    with pytest.raises(LocalInferError, match=f"^{path}: .*{problem}"):
        read_imatrix(path)


def test_legacy_file_truncated_anywhere(tmp_path: Path) -> None:
    whole = legacy((b"x", 2, [1, 2, 3]), (b"y", 1, [4]), tail=struct.pack("<ii", 7, 5) + b"a.txt")
    for length in range(1, len(whole)):
        (tmp_path / "m.dat").write_bytes(whole[:length])
        if length in (len(whole) - 13, len(whole) - 9):  # the tail, or its second half, may be missing
            continue
        with pytest.raises(LocalInferError):
            read_imatrix(tmp_path / "m.dat")


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"x.weight": np.ones((1, 2))}, "not an importance matrix"),
        ({"x.in_sum2": np.ones((1, 2))}, "x.counts: is missing"),
        ({"x.in_sum2": np.ones((1, 2)), "x.counts": np.ones((2, 1))}, "x.counts: 2 counts for 1 matrices"),
        ({"x.in_sum2": np.full((1, 2), np.inf), "x.counts": np.ones((1, 1))}, "x.in_sum2: value 0 is inf"),
    ],
)
def test_broken_gguf_files(tmp_path: Path, tensors: dict[str, np.ndarray], problem: str) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "imatrix")
    for name, values in tensors.items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(LocalInferError, match=problem):
        read_imatrix(tmp_path / "m.gguf")
