"""The GGUF reader: what it accepts, what it rejects, and how much time and memory that takes."""

import errno
import mmap
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import gguf
import malicious_files
import numpy as np
import pytest
from malicious_files import Accepted, Rejected
from tiny import Field, tiny_gemma3, tiny_llama

from localinfer.errors import LocalInferError, ModelNotFoundError, NotEnoughMemoryError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF, StringArray, open_gguf


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def refusal(path: Path) -> str:
    """Return the error message without the path; check that it is one line."""
    with pytest.raises(LocalInferError) as caught:
        open_gguf(path)
    line = str(caught.value)
    assert line.isprintable(), "one line without control characters"
    start = f"{printable(str(path))}: "
    assert line.startswith(start)
    return line.removeprefix(start)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


# ------------------------------------------------------------------------------- rejected and accepted


@pytest.mark.parametrize("attack", malicious_files.REJECTED, ids=lambda attack: attack.name)
def test_rejects(attack: Rejected, file: Path) -> None:
    line = refusal(write(file, attack.content))
    assert line.startswith(f"{attack.field}: " if attack.field else "")
    assert attack.problem in line


@pytest.mark.parametrize("accepted", malicious_files.ACCEPTED, ids=lambda accepted: accepted.name)
def test_accepts(accepted: Accepted, file: Path) -> None:
    touch(open_gguf(write(file, accepted.content)))


@pytest.mark.parametrize(("content", "kind"), malicious_files.OTHER_KINDS.items(), ids=printable)
def test_describes_other_file_types(content: bytes, kind: str, file: Path) -> None:
    line = refusal(write(file, content))
    assert line.startswith("magic: ")
    assert kind in line


def touch(f: GGUF) -> None:
    """Read all metadata and tensors of a file."""
    for value in f.metadata.values():
        if isinstance(value, StringArray):
            assert [value[i] for i in range(len(value))] == list(value)
        elif isinstance(value, np.ndarray):
            value.sum()
    for tensor in f.tensors.values():
        tensor.data.sum()
        assert tensor.n_elements > 0


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([malicious_files.kv("general.architecture", 8, malicious_files.string("llama"))], "llama"),
        ([], ""),
        ([malicious_files.kv("general.architecture", 9, malicious_files.array(4, 2, bytes(8)))], ""),
    ],
)
def test_an_architecture_that_is_no_string_is_unknown(keys: list[bytes], expected: str, file: Path) -> None:
    assert open_gguf(write(file, malicious_files.container(*keys))).architecture == expected


def test_rejects_a_file_truncated_anywhere(file: Path) -> None:
    write(file, malicious_files.VALID)
    touch(open_gguf(file))
    for size in range(len(malicious_files.VALID) - 1, -1, -1):
        os.truncate(file, size)
        if size >= malicious_files.VALID_DATA_ENDS:
            open_gguf(file)
        else:
            refusal(file)


def test_flipped_bytes(file: Path) -> None:
    """A damaged file is rejected with a one-line error, or all of it can be read."""
    refused = opened = 0
    header_ends = open_gguf(write(file, malicious_files.VALID)).data_offset
    with file.open("r+b", buffering=0) as stream:
        for offset, byte in enumerate(malicious_files.VALID[:header_ends]):
            for flip in (0x01, 0x80, 0xFF):
                stream.seek(offset)
                stream.write(bytes([byte ^ flip]))
                try:
                    touch(open_gguf(file))
                    opened += 1
                except LocalInferError:
                    refusal(file)
                    refused += 1
            stream.seek(offset)
            stream.write(bytes([byte]))
    assert refused > 500
    assert opened > 100  # flips in names and values


# ----------------------------------------------------------------------------------- time and memory

OPEN_ALL = """
import resource, sys, time
from localinfer.errors import LocalInferError
from localinfer.gguf.reader import open_gguf
idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    start = time.perf_counter()
    try:
        open_gguf(path)
    except LocalInferError:
        pass
    if time.perf_counter() - start > 1:
        print(path, "took too long")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - idle)
"""


def test_malicious_files_need_little_memory_and_time(tmp_path: Path) -> None:
    """All files in one process: no crash, less than a second each, and no memory allocated for claimed sizes."""
    paths = [write(tmp_path / attack.name.replace(" ", "-"), attack.content) for attack in malicious_files.REJECTED]
    assert rss_growth_of_opening(paths) < 32 << 20


def test_a_sparse_terabyte_opens_at_once(file: Path) -> None:
    sparse(file, malicious_files.VALID, 1 << 40)
    assert open_gguf(file).trailing_bytes == (1 << 40) - len(malicious_files.VALID)
    assert rss_growth_of_opening([file]) < 16 << 20


def test_strings_without_end_stay_within_the_header(file: Path) -> None:
    """A sparse file can back any claimed array with zeros, which are empty strings."""
    content = malicious_files.one_value(malicious_files.ARRAY, malicious_files.array(malicious_files.STRING, 10**9))
    sparse(file, content, 1 << 40)
    assert "the header may not be larger than 67108864 bytes" in refusal(file)
    assert rss_growth_of_opening([file]) < 16 << 20


def rss_growth_of_opening(paths: Sequence[Path]) -> int:
    """Return by how many bytes the RSS of a process grows when it opens the files one after the other."""
    command = [sys.executable, "-c", OPEN_ALL, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1, done.stdout
    return int(done.stdout) * (1 if sys.platform == "darwin" else 1024)


def sparse(path: Path, content: bytes, size: int) -> None:
    write(path, content)
    try:
        os.truncate(path, size)
    except OSError as error:
        pytest.skip(f"no sparse files of {size} bytes here: {error}")


# ---------------------------------------------------------------------------- paths that are no files


def test_rejects_non_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe") == "is a pipe, not a file"
    assert refusal(tmp_path) == "is a directory, not a file"
    (tmp_path / "config.json").touch()
    assert f"this is a checkpoint; `localinfer quantize {tmp_path} OUT.gguf Q8_0`" in refusal(tmp_path)
    assert refusal(Path("/dev/zero")) == "is a device, not a file"
    assert refusal(Path("/dev/null")) == "is a device, not a file"


def test_rejects_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the length of a socket's address is limited
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        assert refusal(Path("socket")) == "is a socket, not a file"


def test_rejects_unreachable_paths(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ModelNotFoundError, match="dangling: no such file"):
        open_gguf(tmp_path / "dangling")
    assert "symbolic links" in refusal(tmp_path / "loop")
    assert "cannot be the name of a file" in refusal(Path("a\0b"))
    assert "name too long" in refusal(tmp_path / ("x" * 300)).lower()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_rejects_unreadable_files(file: Path) -> None:
    write(file, malicious_files.VALID).chmod(0)
    assert refusal(file) == "Permission denied"


@pytest.mark.parametrize("name", [b"-leading", b"new\nline", b"escape\x1b[31m", b"not utf-8 \xff"])
def test_odd_names_are_only_names(name: bytes, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(name)
    try:
        write(path, malicious_files.VALID)
    except OSError as error:
        pytest.skip(f"this file system has no such names: {error}")
    open_gguf(path)
    os.truncate(path, 0)
    assert refusal(path) == "empty file"


# ----------------------------------------------------------------------------------- files that change


def test_detects_changed_file(file: Path) -> None:
    write(file, malicious_files.VALID)
    f = open_gguf(file)
    f.check_unchanged()
    os.truncate(file, len(malicious_files.VALID) - 1)
    with pytest.raises(LocalInferError, match="file changed or truncated while in use"):
        f.check_unchanged()
    write(file, malicious_files.VALID)
    f = open_gguf(file)
    os.utime(file, ns=(0, 0))
    with pytest.raises(LocalInferError, match="file changed"):
        f.check_unchanged()


def test_replaced_file_stays_readable(file: Path) -> None:
    f = open_gguf(write(file, malicious_files.VALID))
    write(file.with_suffix(".new"), b"another").replace(file)
    f.check_unchanged()
    touch(f)


def test_file_is_closed_when_garbage_collected(file: Path) -> None:
    write(file, malicious_files.VALID)
    before = open_descriptors()
    for _ in range(50):
        tensors = open_gguf(file).tensors
    assert tensors["a"].data.sum() == 0  # still mapped although the GGUF object was deleted
    assert open_descriptors() <= before + 4


def open_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


# ------------------------------------------------------------------------------------ the gguf package


EVERY_TYPE = {
    "a.u8": Field("UINT8", 255),
    "a.i8": Field("INT8", -128),
    "a.u16": Field("UINT16", 65535),
    "a.i16": Field("INT16", -32768),
    "a.u32": Field("UINT32", 2**32 - 1),
    "a.i32": Field("INT32", -(2**31)),
    "a.f32": Field("FLOAT32", 0.5),
    "a.bool": Field("BOOL", True),
    "a.string": Field("STRING", "ünï\0code"),
    "a.u64": Field("UINT64", 2**64 - 1),
    "a.i64": Field("INT64", -(2**63)),
    "a.f64": Field("FLOAT64", 1e300),
    "a.strings": Field("ARRAY", ["", "x", "日本"], "STRING"),
    "a.bools": Field("ARRAY", [True, False, True], "BOOL"),
    **{
        f"a.array.{kind}": Field("ARRAY", [1, 2, 100], kind)
        for kind in ("UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "UINT64", "INT64")
    },
    "a.array.FLOAT32": Field("ARRAY", [0.5, -1.0, float("inf")], "FLOAT32"),
    "a.array.FLOAT64": Field("ARRAY", [1e300, -1.0], "FLOAT64"),
}


def test_reads_every_type_that_the_package_writes(file: Path) -> None:
    metadata = open_gguf(tiny_llama(file, n_layer=1, **EVERY_TYPE)).metadata
    for key, field in EVERY_TYPE.items():
        value = metadata[key]
        if isinstance(value, StringArray):
            assert [text.decode() for text in value] == field.value
        elif isinstance(value, np.ndarray):
            assert value.tolist() == field.value
        else:
            assert value == field.value
            assert type(value) is type(field.value)


@pytest.mark.parametrize("write_model", [tiny_llama, tiny_gemma3])
@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q5_0", "Q4_K", "Q6_K"])
def test_agrees_with_the_package_on_tensors(  # type: ignore[no-untyped-def]
    write_model, type_name: str, file: Path
) -> None:
    f = open_gguf(write_model(file, type=type_name, n_layer=1))
    reader = gguf.GGUFReader(file)
    assert list(f.tensors) == [tensor.name for tensor in reader.tensors]
    for reference in reader.tensors:
        ours = f.tensors[reference.name]
        assert (ours.type_name, ours.offset) == (reference.tensor_type.name, reference.data_offset)
        assert ours.shape == tuple(reversed(reference.shape.tolist()))
        assert ours.nbytes == reference.n_bytes
        assert np.array_equal(ours.data, reference.data.reshape(-1).view(np.uint8))
        assert not ours.data.flags.writeable


def test_agrees_with_the_package_on_metadata(file: Path) -> None:
    f = open_gguf(tiny_gemma3(file, n_layer=1))
    fields = gguf.GGUFReader(file).fields
    assert [name for name in fields if not name.startswith("GGUF.")] == list(f.metadata)
    for key, value in f.metadata.items():
        reference = fields[key].contents()
        if isinstance(value, StringArray):
            assert [text.decode() for text in value] == reference
        else:
            assert np.array_equal(value, reference)


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_reads_any_alignment_that_the_package_writes(alignment: int, file: Path) -> None:
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_custom_alignment(alignment)
    for name, n in (("a", 3), ("b", 1000), ("c", 1)):
        writer.add_tensor(name, np.full(n, n, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    f = open_gguf(file)
    assert f.alignment == alignment
    for tensor in f.tensors.values():
        assert (tensor.data.view(np.float32) == tensor.n_elements).all()


# --------------------------------------------------------------------------------------- typed reading


@pytest.fixture
def typed_file(file: Path) -> GGUF:
    return open_gguf(
        tiny_llama(
            file,
            n_layer=1,
            **EVERY_TYPE,
            nan=float("nan"),
            inf=Field("FLOAT64", float("inf")),
            minus=Field("FLOAT32", -1.5),
            mojibake=b"\xff",
        )
    )


def test_get_typed_values(typed_file: GGUF) -> None:
    assert typed_file.get("a.u8", int) == 255
    assert typed_file.get("a.i32", int, signed=True) == -(2**31)
    assert typed_file.get("a.f64", float) == 1e300
    assert typed_file.get("a.bool", bool) is True
    assert typed_file.get("a.string", str) == "ünï\0code"
    assert list(typed_file.get("a.strings", StringArray)) == [b"", b"x", "日本".encode()]
    assert typed_file.get("a.array.INT64", np.ndarray).tolist() == [1, 2, 100]
    assert typed_file.get("missing", int, None) is None


@pytest.mark.parametrize(
    ("key", "kind", "problem"),
    [
        ("missing", int, "is missing; it must be an integer"),
        ("a.string", int, "expected an integer, got a string"),
        ("a.bool", int, "expected an integer, got a bool"),
        ("a.u8", bool, "expected a bool, got an integer"),
        ("a.u8", float, "expected a floating-point number, got an integer"),
        ("a.strings", str, "expected a string, got an array of strings"),
        ("a.strings", np.ndarray, "expected an array of numbers, got an array of strings"),
        ("a.bools", StringArray, "expected an array of strings, got an array of numbers"),
        ("a.i8", int, "-128 is negative"),
        ("minus", float, "-1.5 is negative"),
        ("nan", float, "nan is not a finite number"),
        ("inf", float, "inf is not a finite number"),
        ("mojibake", str, "is not valid UTF-8"),
    ],
)
def test_get_names_key_and_problem(typed_file: GGUF, key: str, kind: type, problem: str) -> None:
    with pytest.raises(LocalInferError) as caught:
        typed_file.get(key, kind)
    assert str(caught.value) == f"{typed_file.path}: {key}: {problem}"


def test_string_array_is_a_sequence(file: Path) -> None:
    tokens = open_gguf(write(file, malicious_files.VALID)).metadata["tokens"]
    assert isinstance(tokens, StringArray)
    assert len(tokens) == 3
    assert list(tokens) == [b"x", b"", b"zz"]
    assert tokens[2] == tokens[-1] == b"zz"
    assert tokens.lengths.tolist() == [1, 0, 2]
    with pytest.raises(IndexError):
        tokens[3]


# ------------------------------------------------------------------------------------- the real models


@pytest.mark.parametrize(("model", "seconds"), [("smollm2", 0.05), ("gemma3", 0.15)])
def test_real_models_open_fast(model: str, seconds: float, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(model)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        f = open_gguf(path)
        times.append(time.perf_counter() - start)
    assert min(times) <= seconds
    assert f.trailing_bytes == 0
    assert len(f.get("tokenizer.ggml.tokens", StringArray)) == f.tensors["token_embd.weight"].shape[0]


def test_failed_mapping_raises_not_enough_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    path = tmp_path / "some.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setattr(mmap, "mmap", full)
    with pytest.raises(
        NotEnoughMemoryError, match=r"some\.gguf: cannot be mapped into memory: Cannot allocate memory$"
    ):
        open_gguf(path)
