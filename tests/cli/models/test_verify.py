"""`localinfer verify` with tiny models."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference_models
from flipped_bits import flip_a_bit
from locations import TESTS
from safetensors.numpy import load_file, save_file
from tiny import tiny_llama

Run = Callable[..., tuple[int, str, str]]
HAS_TRANSFORMERS = find_spec("torch") is not None and find_spec("transformers") is not None
SHORT = "-t", "1", "-n", "8"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "llama.gguf")


def test_the_worst_checks_are_shown(run: Run, file: Path) -> None:
    code, out, err = run("verify", file, *SHORT)
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["operation", "type", "checks", "worst", "shape", "error", "allowed"]
    assert all(line.endswith("  ok") for line in lines[1:])
    assert [line.split()[0] for line in lines[1:]].count("product") == 1
    n_checks, _, rest = err.partition(" checks, ")
    assert rest.startswith("all within what is allowed (")
    code, out, _ = run("verify", file, *SHORT, "--all")
    assert code == 0
    assert len(out.splitlines()) == 1 + int(n_checks)


def test_json_has_every_check(run: Run, file: Path) -> None:
    code, out, err = run("verify", file, *SHORT, "--json", "-p", "Hello and the other one")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["ok"]
    assert found["batches"] == [5, 1, 2]
    assert found["precision"] == "fast"
    assert found["weights_not_finite"] == []
    product = next(check for check in found["checks"] if check["name"] == "blk.1.attn_q")
    assert product["type"] == "Q8_0"
    assert product["shape"] == [8, 256]
    assert 0 < product["error"] < product["allowed"] < 1e-4


def test_a_wrong_operation_is_an_error(run: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip_a_bit(monkeypatch, "blk.1.attn_q.weight")
    code, out, err = run("verify", file, *SHORT)
    assert code == 1
    assert err.startswith(f"error: {file}: blk.1.attn_q (product): the error is ")
    assert err.count("\n") == 1
    assert [line.split()[-2:] for line in out.splitlines() if "product" in line] == [["1", "wrong"]]


def test_weights_that_are_not_finite_are_an_error(run: Run, tmp_path: Path) -> None:
    weights = np.ones((512, 256), np.float32)
    weights[7, 3] = np.nan
    file = tiny_llama(tmp_path / "m.gguf", **{"blk.1.ffn_up.weight": weights})
    code, _, err = run("verify", file, *SHORT)
    assert (code, err) == (1, f"error: {file}: tensor blk.1.ffn_up.weight: has values that are not finite\n")


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["-n", "3"], 2, "3 is not in the range x>=4"),
    (["-p", ""], 2, "the text has no tokens"),
    (["--against", "nothing"], 2, "--against: nothing is not a directory"),
    (["--trust-remote-code"], 2, "--trust-remote-code: needs --against"),
])  # fmt: skip
def test_bad_input_is_one_line(run: Run, file: Path, arguments: list[str], code: int, message: str) -> None:
    actual, _, err = run("verify", file, *arguments)
    assert actual == code
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.skipif(HAS_TRANSFORMERS, reason="torch and transformers are installed")
def test_transformers_is_needed_for_a_checkpoint(run: Run, file: Path, tmp_path: Path) -> None:
    code, _, err = run("verify", file, "--against", tmp_path)
    assert code == 3
    assert err.startswith("error: --against: torch and transformers must be installed")


@pytest.mark.skipif(not HAS_TRANSFORMERS, reason="torch and transformers are not installed")
@pytest.mark.parametrize("name", ["llama3", "mamba2", "qwen3moe"])
def test_a_conversion_is_compared_with_its_checkpoint(run: Run, name: str, tmp_path: Path) -> None:
    checkpoint = reference_models.checkpoint(name, tmp_path)
    right = checkpoints.as_type(checkpoint, tmp_path / "right.gguf", "F32")
    code, out, _ = run("verify", right, "--against", checkpoint)
    assert code == 0
    assert [line.split()[2] for line in out.splitlines()[1:]] == ["blk.0.resid_post", "blk.1.resid_post", "logits"]
    quantized = checkpoints.as_type(checkpoint, tmp_path / "quantized.gguf", "Q8_0")
    code, _, err = run("verify", quantized, "--against", checkpoint)
    assert (code, "convert the checkpoint to F32, BF16 or F16" in err) == (2, True)
    other = reference_models.checkpoint("llama2" if name == "llama3" else "llama3", tmp_path)
    code, _, err = run("verify", right, "--against", other)
    assert (code, "blk.0.resid_post: differs from transformers by" in err) == (1, True)


@pytest.mark.skipif(not HAS_TRANSFORMERS, reason="torch and transformers are not installed")
def test_code_of_a_checkpoint_runs_only_if_it_is_trusted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers has no class for PLM."""
    checkpoint = reference_models.checkpoint("plm", tmp_path)
    (checkpoint / "modeling_plm.py").write_text((TESTS / "oracles" / "plm_model.py").read_text())
    classes = {"AutoConfig": "modeling_plm.PLMConfig", "AutoModelForCausalLM": "modeling_plm.PLMForCausalLM"}
    checkpoints.edit_json(checkpoint / "config.json", lambda config: config.update(auto_map=classes))
    model = checkpoints.as_type(checkpoint, tmp_path / "plm.gguf", "F32")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    assert run("verify", model, "--against", checkpoint, "--trust-remote-code")[0] == 0
    code, _, err = run("verify", model, "--against", checkpoint)
    assert (code, err.count("\n")) == (3, 1)
    assert "has no language model of type plm; --trust-remote-code runs the Python files of the checkpoint" in err


@pytest.mark.skipif(not HAS_TRANSFORMERS, reason="torch and transformers are not installed")
def test_the_text_model_of_a_model_with_images_is_compared(run: Run, tmp_path: Path) -> None:
    """transformers has no class for the text model alone, and the encoder of images has no weights here."""
    checkpoint = reference_models.checkpoint("qwen2vl", tmp_path)
    model = checkpoints.as_type(checkpoint, tmp_path / "model.gguf", "F32")
    code, out, _ = run("verify", model, "--against", checkpoint)
    assert (code, len(out.splitlines())) == (0, 1 + 3 + 1)


@pytest.mark.skipif(not HAS_TRANSFORMERS, reason="torch and transformers are not installed")
def test_weights_that_transformers_does_not_find_are_an_error(run: Run, tmp_path: Path) -> None:
    """transformers would compute with random values."""
    checkpoint = reference_models.checkpoint("llama3", tmp_path)
    model = checkpoints.as_type(checkpoint, tmp_path / "model.gguf", "F32")
    weights = load_file(checkpoint / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})
    code, _, err = run("verify", model, "--against", checkpoint)
    assert (code, err.count("\n")) == (1, 1)
    assert err.endswith("transformers does not find the weights model.layers.1.mlp.up_proj.weight\n")
