"""LoRA adapters merged into a model."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from lora_adapter import ALPHA, RANK, lora_adapter
from numpy.typing import NDArray
from tiny import tiny_llama

Run = Callable[..., tuple[int, str, str]]
Q = "blk.0.attn_q.weight"


def weights(path: Path) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def floats(tensor: gguf.ReaderTensor) -> NDArray[np.float32]:
    return gguf.dequantize(tensor.data, tensor.tensor_type)


@pytest.mark.parametrize("type", ["Q8_0", "F32"])
def test_changed_tensors_get_the_products(run: Run, tmp_path: Path, type: str) -> None:
    model = tiny_llama(tmp_path / "model.gguf", type=type)
    adapters = [lora_adapter(tmp_path / f"{seed}.gguf", seed=seed) for seed in (0, 1)]
    out = tmp_path / "out.gguf"
    scaled = f"{adapters[1]}:-0.5"
    code, _, err = run("export-lora", "-m", model, "-o", out, "--lora", adapters[0], "--lora-scaled", scaled)
    assert code == 0, err
    before, after, changes = weights(model), weights(out), [weights(each) for each in adapters]
    for name in Q, "blk.1.ffn_down.weight":
        expected = floats(before[name])
        for each, scale in zip(changes, (1.0, -0.5), strict=True):
            product = floats(each[name + ".lora_b"]) @ floats(each[name + ".lora_a"])
            expected = expected + np.float32(scale * ALPHA / RANK) * product
        assert after[name].tensor_type.name == ("F32" if type == "F32" else "F16")
        np.testing.assert_allclose(floats(after[name]), expected, rtol=1e-3, atol=1e-5)
    same = before.keys() - {Q, "blk.1.ffn_down.weight"}
    assert all(np.array_equal(before[name].data, after[name].data) for name in same)
    assert gguf.GGUFReader(out).get_field("general.file_type").contents() == 1  # mostly F16


def test_without_alpha_the_scale_is_the_factor(run: Run, tmp_path: Path) -> None:
    model, adapter = tiny_llama(tmp_path / "m.gguf"), lora_adapter(tmp_path / "a.gguf", adapter_lora_alpha=0.0)
    assert run("export-lora", "-m", model, "-o", tmp_path / "out.gguf", "--lora-scaled", adapter, "2")[0] == 0
    change = weights(adapter)
    product = floats(change[Q + ".lora_b"]) @ floats(change[Q + ".lora_a"])
    actual = floats(weights(tmp_path / "out.gguf")[Q]) - floats(weights(model)[Q])
    np.testing.assert_allclose(actual, 2 * product, atol=2e-3)


def test_token_embeddings(run: Run, tmp_path: Path) -> None:
    """A has a row for each token, because rows of it are looked up."""
    model = tiny_llama(tmp_path / "m.gguf")
    name = "token_embd.weight"
    n_vocab = len(floats(weights(model)[name]))
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, RANK), np.float32) for n in (n_vocab, 256))
    adapter = lora_adapter(tmp_path / "a.gguf", changes={f"{name}.lora_a": a, f"{name}.lora_b": b})
    assert run("export-lora", "-m", model, "-o", tmp_path / "out.gguf", "--lora", adapter)[0] == 0
    expected = floats(weights(model)[name]) + np.float32(ALPHA / RANK) * (a @ b.T)
    np.testing.assert_allclose(floats(weights(tmp_path / "out.gguf")[name]), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"general_architecture": "gemma3"}, "general.architecture: gemma3, but the model is llama"),
        ({"general_type": "model"}, "general.type: must be adapter: it is not a LoRA adapter"),
        ({"adapter_type": "dora"}, "adapter.type: must be lora"),
        ({"changes": {f"{Q}.lora_a": None}}, f"{Q}.lora_b: the other matrix of the pair is missing"),
        ({"changes": {"blk.9.attn_q.weight.lora_a": np.ones((4, 256), np.float32)}}, "the model has no such tensor"),
        ({"changes": {f"{Q}.lora_a": np.ones((5, 256), np.float32)}}, "(5, 256) and (256, 4) do not fit a tensor of"),
    ],
)
def test_adapters_that_do_not_fit(run: Run, tmp_path: Path, changed: dict[str, object], message: str) -> None:
    model = tiny_llama(tmp_path / "m.gguf")
    adapter = lora_adapter(tmp_path / "a.gguf", **changed)  # type: ignore[arg-type]
    code, out, err = run("export-lora", "-m", model, "-o", tmp_path / "out.gguf", "--lora", adapter)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"error: {adapter}: " in err
    assert message in err
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("value", ["a.gguf", "a.gguf:", ":1", "a.gguf:x", "a.gguf:nan"])
def test_invalid_scale(run: Run, tmp_path: Path, value: str) -> None:
    code, _, err = run("quantize", tmp_path / "m.gguf", tmp_path / "out.gguf", "COPY", "--lora-scaled", value)
    assert code == 2
    assert "--lora-scaled: must be FILE:SCALE" in err
