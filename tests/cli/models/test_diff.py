"""`diff`: what differs between two models, with errors that numpy computes from gguf.dequantize."""

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.tiny_llama(tmp_path / "model.gguf", n_layer=1, type="F32")


def weights(path: Path) -> dict[str, np.ndarray]:
    return {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float64) for t in gguf.GGUFReader(path).tensors}


def test_errors_are_those_of_numpy(run: Run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    assert run("quantize", model, out, "Q4_K", "--override-kv", "general.name=str:other")[0] == 0
    code, text, _ = run("diff", model, out, "--json")
    found = json.loads(text)
    assert code == 0
    a, b = weights(model), weights(out)
    different = {name for name in a if not np.array_equal(a[name], b[name])}
    errors = {each["name"]: each for each in found["tensors"]}
    assert different <= errors.keys()
    for name, each in errors.items():
        error = np.sqrt(np.square(b[name] - a[name]).sum() / np.square(a[name]).sum())
        assert each["error"] == pytest.approx(error, rel=1e-5)
        assert each["largest"] == pytest.approx(np.abs(b[name] - a[name]).max(), rel=1e-5)
        assert each["first"]["type"] == "F32"
    keys = {each["key"]: (each["first"], each["second"]) for each in found["metadata"]}
    assert keys["general.name"][1] == "other"


def test_equal_models_and_exit_codes(run: Run, model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(model.read_bytes())
    text = f"metadata: equal\n\ntensors: {len(weights(model))} equal, 0 differ\n"
    assert run("diff", model, copy, "--exit-code")[:2] == (0, text)
    assert run("edit", copy, "--set", "general.name=x")[0] == 0
    assert run("diff", model, copy)[0] == 0
    code, out, _ = run("diff", model, copy, "--exit-code", "--metadata-only")
    assert code == 1
    assert out.startswith("metadata: 1 key differs\n  general.name  ")
    assert "tensors" not in out


def test_tensors_of_one_model_only_and_other_shapes(run: Run, model: Path, tmp_path: Path) -> None:
    larger = tiny.tiny_llama(tmp_path / "larger.gguf", n_layer=2, n_ff=768, type="F32")
    _, text, _ = run("diff", model, larger, "--json")
    found = {each["name"]: each for each in json.loads(text)["tensors"]}
    assert found["blk.1.attn_q.weight"]["first"] is None
    assert found["blk.0.ffn_up.weight"]["error"] is None  # another shape
    code, text, _ = run("diff", larger, model)
    assert code == 0
    assert "blk.1.attn_q.weight" in text


def test_file_that_is_no_model(run: Run, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF" + bytes(40))
    code, out, err = run("diff", model, other)
    assert (code, out, err.count("\n")) == (1, "", 1)
