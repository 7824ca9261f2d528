"""Adapter files that are damaged, hostile or of another model: one line, the documented exit code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft_adapters
import pytest
import reference_models
from checkpoints import as_f32
from lora_adapter import control_vector, lora_adapter, write_adapter
from safetensors.numpy import load_file, save_file
from tiny import Field, tiny_llama

from cli import __main__

Q, DOWN = "blk.0.attn_q.weight", "blk.1.ffn_down.weight"
ONES, LARGE = np.ones((4, 256), np.float32), np.ones((999, 256), np.float32)
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "m.gguf")


@pytest.fixture(scope="module")
def llama3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return as_f32(reference_models.checkpoint("llama3", folder), folder / "llama3.gguf")


def refusal(model: Path, capsys: pytest.CaptureFixture[str], *flags: object) -> tuple[int, str]:
    """Run a command that loads the model with these flags, and return the exit code and the error."""
    words = ["generate", model, "Hi", "-n", "1", "-c", "64", "--no-tune", *flags]
    code = __main__.run(list(map(str, words)))
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith(("compiling", "warning"))]
    assert out == ""
    assert len(lines) == 1, err
    return code, lines[0]


@pytest.mark.parametrize(
    ("changed", "code", "message"),
    [
        ({"general_architecture": "qwen2"}, 1, "general.architecture: qwen2, but the model is llama"),
        ({"general_type": "model"}, 1, "general.type: must be adapter"),
        ({"adapter_type": "dora"}, 1, "adapter.type: must be lora"),
        ({"adapter_alora_invocation__tokens": Field("ARRAY", [1, 2], "UINT32")}, 3, "activated LoRA (aLoRA)"),
        ({"adapter_lora_alpha": float("nan")}, 1, "its factor nan is no finite number, or too large"),
        ({"adapter_lora_alpha": float("-inf")}, 1, "its factor -inf is no finite number, or too large"),
        ({"adapter_lora_alpha": Field("FLOAT64", 1e300)}, 1, "its factor 2.5e+299 is no finite number, or too large"),
        ({"changes": {f"{Q}.lora_a": None}}, 1, f"{Q}.lora_b: the other matrix of the pair is missing"),
        ({"changes": {f"{Q}.lora_b": None}}, 1, f"{Q}.lora_a: the other matrix of the pair is missing"),
        ({"changes": {"blk.9.attn_q.weight.lora_a": ONES}}, 1, "the model has no such tensor"),
        ({"changes": {"blk.0.attn_norm.weight": np.ones(256, np.float32)}}, 1, "must end in .lora_a or .lora_b"),
        ({"changes": {f"{Q}.lora_a": np.ones((5, 256), np.float32)}}, 1, "(5, 256) and (256, 4) do not fit"),
        ({"changes": {f"{Q}.lora_a": np.ones((4, 128), np.float32)}}, 1, "do not fit a tensor of"),
        ({"changes": {f"{Q}.lora_a": np.ones(1024, np.float32)}}, 1, "do not fit a tensor of"),
        ({"changes": {f"{Q}.lora_a": np.ones((2, 2, 256), np.float32)}}, 1, "do not fit a tensor of"),
        ({"changes": {f"{Q}.lora_a": np.full((4, 256), np.nan, np.float32)}}, 1, "has values that are not finite"),
        ({"changes": {f"{Q}.lora_b": np.full((256, 4), np.inf, np.float16)}}, 1, "has values that are not finite"),
        ({"changes": {f"{Q}.lora_a": np.ones((4, 256), np.int32)}}, 3, "type I32 is not supported"),
        (
            {"changes": {f"{Q}.lora_a": LARGE, f"{Q}.lora_b": LARGE.T}}, 1, "the rank 999 is larger than the matrix",
        ),
        (
            {"changes": {"output_norm.weight.lora_a": ONES, "output_norm.weight.lora_b": ONES}}, 1, "do not fit",
        ),
        (
            {"changes": {"token_embd.weight.lora_a": ONES, "token_embd.weight.lora_b": np.ones((280, 4), np.float32)}},
            1, "do not fit a tensor",
        ),
    ],
)  # fmt: skip
def test_gguf(
    changed: dict[str, Any], code: int, message: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = lora_adapter(tmp_path / "a.gguf", **changed)
    actual = refusal(model, capsys, "--lora", path)
    assert actual[0] == code, actual
    assert message in actual[1]
    assert actual[1].startswith(("error: tensor", f"error: {path}: "))


def test_an_adapter_without_matrices(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(model, capsys, "--lora", write_adapter(tmp_path / "a.gguf", {}))[0] == 1


def test_truncated_files(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = lora_adapter(tmp_path / "whole.gguf").read_bytes()
    for size in (0, 3, 24, 100, 200, len(content) // 2, len(content) - 1):
        (tmp_path / "a.gguf").write_bytes(content[:size])
        assert refusal(model, capsys, "--lora", tmp_path / "a.gguf")[0] == 1, size


def test_damaged_bytes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each byte of the header inverted: refused, or a valid adapter; never a crash."""
    content = bytearray(lora_adapter(tmp_path / "whole.gguf").read_bytes())
    from localinfer.adapters.lora_file import open_lora
    from localinfer.adapters.target import Target
    from localinfer.errors import LocalInferError
    from localinfer.gguf.reader import open_gguf

    target, refused = Target.of_file(open_gguf(model)), 0
    for at in range(0, 600, 3):
        changed = content.copy()
        changed[at] ^= 0xFF
        (tmp_path / "a.gguf").write_bytes(changed)
        problem = ""
        try:
            open_lora(tmp_path / "a.gguf", target)
        except LocalInferError as error:
            problem = str(error)
        assert "\n" not in problem
        refused += problem != ""
    assert refused > 100


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lora-scaled", "FILE"], "--lora-scaled: must be FILE:SCALE"),
        (["--lora-scaled", "FILE:nan"], "--lora-scaled: must be FILE:SCALE"),
        (["--lora-scaled", "FILE:inf"], "--lora-scaled: must be FILE:SCALE"),
        (["--lora-scaled", "FILE:1e300"], "--lora-scaled: must be FILE:SCALE"),
        (["--lora", "FILE", "--lora-scales", "1=1"], "lora_scales: there is no adapter 1; the model has 1"),
        (["--lora", "FILE", "--lora-scales", "0=nan"], "--lora-scales: must be the number of an adapter"),
        (["--lora", "FILE", "--lora-scales", "x"], "--lora-scales: must be the number of an adapter"),
        (["--lora-scales", "0=1"], "lora_scales: there is no adapter 0; the model has 0"),
        (["--control-vector-layer-range", "a,b"], "--control-vector-layer-range: must be the first and the last layer"),
    ],
)  # fmt: skip
def test_invalid_options(
    flags: list[str], message: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(lora_adapter(tmp_path / "a.gguf"))
    code, error = refusal(model, capsys, *(flag.replace("FILE", path) for flag in flags))
    assert code == 2
    assert message in error


# --- PEFT ---


def edit(**changes: object) -> Change:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def edit_tensors(change: Callable[[dict[str, Any]], object]) -> Change:
    def changed(folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return changed


def with_tensor(name: str, values: Any) -> Change:
    return edit_tensors(lambda each: each.update({name: values}))


LAYER = "base_model.model.model.layers.0.self_attn."


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (edit(use_dora=True), 3, "use_dora: DoRA is not supported"),
        (edit(peft_type="IA3"), 3, "peft_type: IA3 is not supported, only LORA"),
        (edit(bias="all"), 3, "bias: training of biases is not supported"),
        (edit(modules_to_save=["lm_head"]), 3, "modules_to_save: training of whole modules is not supported"),
        (edit(init_lora_weights="pissa_niter_4"), 3, "init_lora_weights: pissa_niter_4 changes the weights"),
        (edit(lora_alpha="8"), 1, "lora_alpha: expected a number"),
        (edit(lora_alpha=None), 1, "lora_alpha: is missing"),
        (edit(alpha_pattern={"(": 1.0}), 1, "alpha_pattern.(: is not a pattern"),
        (edit(alpha_pattern={"(a+)+b*": 1.0}), 1, "is not the name of a module"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), 1, "adapter_config.json: not JSON"),
        (lambda folder: (folder / "adapter_config.json").unlink(), 1, "there is no adapter_config.json"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), 1, "there is no adapter_model.safetensors"),
        (
            lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"\x80\x02pickle"), 1,
            "not a safetensors file",
        ),
        (edit_tensors(lambda each: each.pop(f"{LAYER}q_proj.lora_A.weight")), 1, "the other matrix of the pair"),
        (with_tensor("other", ONES), 3, "tensor other: is no matrix of LoRA"),
        (with_tensor(f"{LAYER}q_proj.lora_magnitude_vector", ONES), 3, "magnitude_vector: is no matrix of LoRA"),
        (with_tensor(f"{LAYER}q_proj.lora_B.weight", ONES[:3]), 1, "does not fit the heads"),
        (with_tensor(f"{LAYER}v_proj.lora_B.weight", ONES[:3]), 1, "do not fit a tensor"),
        (with_tensor(f"{LAYER}x_proj.lora_B.weight", ONES), 1, "is not part of"),
        (edit_tensors(lambda each: each.clear()), 1, "has no matrices"),
    ],
)  # fmt: skip
def test_peft(
    change: Change, code: int, message: str, llama3: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = peft_adapters.write("llama3", tmp_path)
    change(folder)
    actual = refusal(llama3, capsys, "--lora", folder)
    assert actual[0] == code, actual
    assert message in actual[1]


def test_peft_of_another_architecture(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("gpt2", "phi3", "gptneox"):
        assert refusal(model, capsys, "--lora", peft_adapters.write(name, tmp_path))[0] == 1


# --- control vectors ---


@pytest.mark.parametrize(
    ("directions", "keys", "message"),
    [
        ({1: ONES[0]}, {"general_architecture": "llama"}, "general.architecture: must be controlvector"),
        ({0: ONES[0]}, {}, "direction.0: the model has the layers 1 to 1 for control vectors"),
        ({2: ONES[0]}, {}, "direction.2: the model has the layers 1 to 1"),
        ({1: ONES[0, :128]}, {}, "direction.1: must be F32 [256] for this model, not F32 [128]"),
        ({1: ONES}, {}, "direction.1: must be F32 [256] for this model, not F32 [4, 256]"),
        ({1: ONES[0].astype(np.float16)}, {}, "direction.1: must be F32 [256] for this model, not F16 [256]"),
        ({1: np.full(256, np.nan, np.float32)}, {}, "direction.1: has values that are not finite"),
        ({"x": ONES[0]}, {}, "direction.x: must be direction.N"),
        ({}, {}, "has no vectors"),
    ],
)  # fmt: skip
def test_control_vectors(
    directions: Any, keys: dict[str, Any], message: str, model: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = control_vector(tmp_path / "c.gguf", directions, **keys)
    code, error = refusal(model, capsys, "--control-vector", path)
    assert code == 1
    assert message in error
