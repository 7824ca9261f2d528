"""LoRA adapters merged into a model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from lora_adapter import ALPHA, RANK, lora_adapter, random_pairs
from numpy.typing import NDArray
from tiny import tiny_llama

import localinfer

Run = Callable[..., tuple[int, str, str]]
Q = "blk.0.attn_q.weight"
IDS = list(range(5, 25))
EXACT: Any = {
    "threads": 2, "ctx_size": 64, "precision": "high", "cache_type_k": "f32", "cache_type_v": "f32", "tune": False,
}  # fmt: skip


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


# --- the command merge ---


TOLERANCES = {"F32": 1e-4, "F16": 0.02, "BF16": 0.1, "Q8_0": 0.2, "Q4_K": 3.0}  # of logits


@pytest.mark.parametrize("type", TOLERANCES)
def test_merge_keeps_all_types(run: Run, tmp_path: Path, type: str) -> None:
    model, adapter = tiny_llama(tmp_path / "m.gguf", type=type), lora_adapter(tmp_path / "a.gguf")
    code, out, err = run("merge", model, "--lora-scaled", adapter, "0.5", "-o", tmp_path / "out.gguf")
    assert (code, out) == (0, "")
    before, after = weights(model), weights(tmp_path / "out.gguf")
    assert {name: tensor.tensor_type for name, tensor in before.items()} == {
        name: tensor.tensor_type for name, tensor in after.items()
    }
    changed = {name for name in before if before[name].data.tobytes() != after[name].data.tobytes()}
    assert changed == {Q, "blk.1.ffn_down.weight"}
    assert ("2 matrices of" in err) == type.startswith("Q")
    with (
        localinfer.load(tmp_path / "out.gguf", **EXACT) as merged,
        localinfer.load(model, lora_scaled=f"{adapter}:0.5", **EXACT) as beside,
    ):
        np.testing.assert_allclose(merged.logits(IDS), beside.logits(IDS), rtol=0, atol=TOLERANCES[type])


def test_merged_embeddings_leave_the_output_layer(run: Run, tmp_path: Path) -> None:
    """The output layer shares the embeddings' weights: the merged model has both."""
    model = tiny_llama(tmp_path / "m.gguf", type="F32")
    shape = gguf_shape(weights(model)["token_embd.weight"])
    adapter = random_pairs(tmp_path / "a.gguf", {"token_embd.weight": shape})
    assert run("merge", model, "--lora", adapter, "-o", tmp_path / "out.gguf")[0] == 0
    before, after = weights(model), weights(tmp_path / "out.gguf")
    np.testing.assert_array_equal(after["output.weight"].data, before["token_embd.weight"].data)
    with (
        localinfer.load(tmp_path / "out.gguf", **EXACT) as merged,
        localinfer.load(model, lora=str(adapter), **EXACT) as beside,
    ):
        np.testing.assert_allclose(merged.logits(IDS), beside.logits(IDS), rtol=0, atol=1e-4)


def test_merge_refuses(run: Run, tmp_path: Path) -> None:
    model, adapter, out = tiny_llama(tmp_path / "m.gguf"), lora_adapter(tmp_path / "a.gguf"), tmp_path / "out.gguf"
    for code, message, words in (
        (2, "--lora: missing", []),
        (2, "--lora-scaled: must be FILE:SCALE", ["--lora-scaled", f"{adapter}:x"]),
        (1, "it is not a LoRA adapter", ["--lora", model]),
        (3, "no such file", ["--lora", tmp_path / "missing.gguf"]),
    ):
        actual, stdout, err = run("merge", model, *words, "-o", out)
        assert (actual, stdout) == (code, "")
        assert message in err
        assert not out.exists()
    assert run("merge", model, "--lora", adapter, "-o", out)[0] == 0
    written = out.read_bytes()
    assert run("merge", model, "--lora", adapter, "-o", out)[0] == 2
    assert run("merge", model, "--lora", adapter, "-o", model, "--force")[0] == 2  # never the input
    assert run("merge", model, "--lora", adapter, "-o", out, "--force")[0] == 0
    assert out.read_bytes() == written


def gguf_shape(tensor: gguf.ReaderTensor) -> tuple[int, ...]:
    return tuple(int(each) for each in tensor.shape[::-1])
