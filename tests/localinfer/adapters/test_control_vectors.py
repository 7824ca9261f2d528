"""Control vectors: added to the residual stream, and made from pairs of prompts."""

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from lora_adapter import control_vector
from tiny import tiny_gemma3, tiny_llama

import localinfer
from cli import __main__
from localinfer import naive
from localinfer.adapters import open_adapters
from localinfer.adapters.control_vector_making import direction
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import Extensions

EXACT = Options(
    threads=2, ctx_size=128, precision="high", cache_type_k="f32", cache_type_v="f32", tune=False
)  # fmt: skip
IDS = list(range(5, 45))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of seven layers."""
    return tiny_gemma3(tmp_path_factory.mktemp("models") / "m.gguf", type="F32")


def logits(path: Path, **options: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    f, chosen = open_gguf(path), Options(**asdict(EXACT) | options)
    with closing(Engine.load(f, chosen, extensions=Extensions(adapters=open_adapters(f, chosen)))) as engine:
        return engine.logits(IDS)


def test_logits_agree_with_the_oracle(model: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    one, two = ({layer: rng.standard_normal(256).astype(np.float32) for layer in range(1, 7)} for _ in range(2))
    files = [control_vector(tmp_path / f"{number}.gguf", each) for number, each in enumerate((one, two))]
    chosen = {"control_vector": (str(files[0]),), "control_vector_scaled": (f"{files[1]}:-0.5",)}
    oracle = naive.Model(open_gguf(model))
    plain = naive.forward(oracle, IDS)
    oracle.directions = {layer: one[layer].astype(float) - 0.5 * two[layer] for layer in one}
    np.testing.assert_allclose(logits(model, **chosen), naive.forward(oracle, IDS), rtol=0, atol=1e-3)
    oracle.directions = {layer: values for layer, values in oracle.directions.items() if 2 <= layer <= 4}
    expected = naive.forward(oracle, IDS)
    np.testing.assert_allclose(
        logits(model, **chosen, control_vector_layer_range="2,4"), expected, rtol=0, atol=1e-3
    )
    assert np.abs(expected - plain).max() > 0.1


def test_directions_of_pairs() -> None:
    rng = np.random.default_rng(1)
    axis = np.zeros(32, np.float32)
    axis[3] = 1
    differences = (
        rng.uniform(1, 3, (20, 1)).astype(np.float32) * axis + 0.05 * rng.standard_normal((20, 32)).astype(np.float32)
    )
    np.testing.assert_allclose(direction(differences, "mean"), differences.mean(axis=0), atol=1e-6)
    first = direction(differences, "pca")
    cosine = first @ axis / np.linalg.norm(first)
    assert cosine > 0.99  # not -0.99: it leads from the negative prompts to the positive ones
    assert np.linalg.norm(first) == pytest.approx(differences[:, 3].mean(), rel=0.01)
    np.testing.assert_array_equal(direction(np.zeros((2, 32), np.float32), "pca"), 0)


@pytest.mark.parametrize("method", ["mean", "pca"])
def test_a_vector_moves_a_prompt_to_its_counterpart(method: Any, model: Path, tmp_path: Path) -> None:
    """With one pair, the vector of the last layer makes the output of the negative prompt that of the positive one."""
    out = localinfer.control_vector(
        model, ["Hello the"], ["Hello of"], tmp_path / "c.gguf", method=method, **asdict(EXACT)
    )
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(out).tensors}
    assert list(tensors) == [f"direction.{layer}" for layer in range(1, 7)]
    with localinfer.load(model, options=EXACT) as plain:
        ids = [plain.tokenize(text) for text in ("Hello the", "Hello of")]
        expected = plain.logits(ids[0])[-1]
    options = Options(**asdict(EXACT) | {"control_vector": (str(out),), "control_vector_layer_range": "6,6"})
    with localinfer.load(model, options=options) as steered:
        np.testing.assert_allclose(steered.logits(ids[1])[-1], expected, rtol=0, atol=1e-3)


def test_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, out = tmp_path / "good.txt", tmp_path / "bad.txt", tmp_path / "c.gguf"
    good.write_text("I am happy\\n today\nYou are kind\n")
    bad.write_text("I am sad\\n today\nYou are mean\n")
    words = ["llama-cvector-generator", "-m", model, "--positive-file", good, "--negative-file", bad, "-o", out]
    assert __main__.run([*map(str, words), "--method", "pca", "--pca-iter", "1000"]) == 0
    captured = capsys.readouterr()
    assert "vectors of 6 layers from 2 pairs" in captured.err
    assert captured.out == ""
    reader = gguf.GGUFReader(out)
    assert reader.fields["general.architecture"].contents() == "controlvector"
    assert reader.fields["controlvector.model_hint"].contents() == "gemma3"
    bad.write_text("I am sad\n")
    assert __main__.run(list(map(str, words))) == 2
    assert "have 2 and 1 prompts" in capsys.readouterr().err
    bad.write_text(good.read_text())
    assert __main__.run(list(map(str, words))) == 1
    assert "do not differ" in capsys.readouterr().err


def test_a_model_of_one_layer_has_no_vector(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "m.gguf", n_layer=1)
    with pytest.raises(localinfer.LocalInferError, match="the first layer has no control vector"):
        localinfer.control_vector(model, ["a b"], ["a c"], tmp_path / "c.gguf", ctx_size=64, tune=False)
