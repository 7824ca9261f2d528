"""`localinfer.quantize`, `convert`, `imatrix`, `perplexity`, `compare` and `dequantize`: the commands as functions."""

from pathlib import Path

import numpy as np
import pytest
from locations import DATA
from tiny import tiny_llama

import localinfer
from localinfer.gguf.reader import open_gguf

TEXT = "The quick brown fox jumps over the lazy dog. " * 40


@pytest.fixture(scope="module")
def f32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "f32.gguf", type="F32")


def test_quantize_writes_a_model_of_the_type(f32: Path, tmp_path: Path) -> None:
    out = localinfer.quantize(f32, tmp_path / "q8_0.gguf", "Q8_0", threads=1)
    tensors = open_gguf(out).tensors
    assert tensors["blk.0.ffn_up.weight"].type_name == "Q8_0"
    original = localinfer.dequantize(open_gguf(f32).tensors["blk.0.ffn_up.weight"])
    actual = localinfer.dequantize(tensors["blk.0.ffn_up.weight"])
    assert actual.shape == original.shape
    assert np.abs(actual - original).max() < np.abs(original).max() / 100


def test_the_file_is_that_of_the_command(f32: Path, tmp_path: Path) -> None:
    from cli.__main__ import dispatch

    ours = localinfer.quantize(f32, tmp_path / "ours.gguf", "Q4_K_M", threads=1)
    assert dispatch(["quantize", str(f32), str(tmp_path / "theirs.gguf"), "Q4_K_M", "1"]) == 0
    assert ours.read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


def test_an_existing_file_is_replaced_only_by_force(f32: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"precious")
    with pytest.raises(localinfer.LocalInferError):
        localinfer.quantize(f32, out, "Q8_0")
    assert out.read_bytes() == b"precious"
    localinfer.quantize(f32, out, "Q8_0", force=True)
    assert out.stat().st_size > 1000


@pytest.mark.parametrize("arguments", [{"type": "Q9_Z"}, {"type": "Q8_0", "effort": "heroic"}])
def test_invalid_arguments(f32: Path, tmp_path: Path, arguments: dict[str, str]) -> None:
    with pytest.raises(localinfer.UsageError, match=r"^(type|effort): "):
        localinfer.quantize(f32, tmp_path / "out.gguf", **arguments)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_convert(tmp_path: Path) -> None:
    out = localinfer.convert(DATA / "checkpoints" / "qwen3", tmp_path / "qwen3.gguf")
    assert open_gguf(out).metadata["general.architecture"] == "qwen3"


def test_measures_of_a_text(f32: Path, tmp_path: Path) -> None:
    observed: list[tuple[int, int]] = []
    mean = localinfer.perplexity(
        f32, TEXT, ctx_size=64, max_chunks=3, threads=1, progress=lambda done, total, _: observed.append((done, total))
    )
    assert mean.value > 1
    assert observed == [(1, 3), (2, 3), (3, 3)]
    quantized = localinfer.quantize(f32, tmp_path / "q4_0.gguf", "Q4_0", threads=1)
    summary = localinfer.compare(f32, quantized, TEXT, ctx_size=64, max_chunks=2, threads=1)
    assert summary.divergence.mean.value > 0
    itself = localinfer.compare(f32, f32, TEXT, ctx_size=64, max_chunks=2, threads=1)
    assert abs(itself.divergence.mean.value) < 1e-6


def test_an_importance_matrix_is_written_and_used(f32: Path, tmp_path: Path) -> None:
    path = tmp_path / "imatrix.gguf"
    actual = localinfer.imatrix(f32, TEXT, path, ctx_size=64, max_chunks=2, threads=1)
    assert "blk.0.ffn_up.weight" in actual.entries
    with_importance = localinfer.quantize(f32, tmp_path / "a.gguf", "Q4_K_M", imatrix=path, threads=1)
    without = localinfer.quantize(f32, tmp_path / "b.gguf", "Q4_K_M", threads=1)
    assert with_importance.read_bytes() != without.read_bytes()


def test_a_text_that_is_too_short(f32: Path) -> None:
    with pytest.raises(localinfer.UsageError, match=r"^text: "):
        localinfer.perplexity(f32, "short", threads=1)
