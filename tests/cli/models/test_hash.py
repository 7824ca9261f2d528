"""`hash`: the digests of hashlib and xxhash over the tensors' bytes, in the lines of llama-gguf-hash."""

import hashlib
import uuid
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import tiny
import xxhash

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.tiny_llama(tmp_path / "model.gguf", n_layer=1)


def test_digests(run: Run, model: Path) -> None:
    code, out, _ = run("hash", model, "--all", "--uuid")
    tensors = {tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(model).tensors}
    everything = b"".join(tensors.values())
    lines = []
    for name, data in [*((f"{model}:{name}", data) for name, data in tensors.items()), (str(model), everything)]:
        lines.append(f"xxh64     {xxhash.xxh64(data).hexdigest()}  {name}")
        lines.append(f"sha1      {hashlib.sha1(data).hexdigest()}  {name}")
        lines.append(f"sha256    {hashlib.sha256(data).hexdigest()}  {name}")
    namespace = uuid.UUID("ef001206-dadc-5f6d-a15f-3359e577d4e5")
    sha1 = hashlib.sha1(namespace.bytes + everything).digest()
    lines.append(f"uuid      {uuid.UUID(bytes=sha1[:16], version=5)}  {model}")
    assert (code, out.splitlines()) == (0, lines)


def test_metadata_do_not_count(run: Run, model: Path) -> None:
    before = run("hash", model)[1]
    assert run("edit", model, "--set", "general.name=" + "x" * 99)[0] == 0
    assert run("hash", model)[1] == before
    assert before.splitlines()[-1].startswith("xxh64 ")


def test_manifest(run: Run, model: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "model.manifest"
    manifest.write_text(run("hash", model, "--all")[1])
    code, out, _ = run("hash", model, "--check", manifest)
    assert code == 0
    assert all(line.startswith("sha256 ") and line.endswith("  -  Ok") for line in out.splitlines())
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    code, out, err = run("hash", model, "-c", manifest, "--xxh64")
    wrong = [line for line in out.splitlines() if line.endswith("Invalid")]
    assert code == 1
    assert len(wrong) == 2  # the last tensor, and all of them
    assert "2 digests" in err


def test_bad_manifests(run: Run, model: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("no digest\n")
    for path, problem in ((empty, "has no line of a manifest"), (tmp_path / "none", "No such file")):
        code, out, err = run("hash", model, "--check", path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert problem in err
