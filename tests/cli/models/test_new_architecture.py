"""`localinfer new-architecture` with tiny checkpoints."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import reference_models
from checkpoints import edit_json

from localinfer import architectures

Run = Callable[..., tuple[int, str, str]]
GUIDE = Path(__file__).parents[3] / "docs" / "new-architecture.md"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return reference_models.checkpoint("apertus", tmp_path)


def test_a_draft_is_written_and_never_overwritten(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    command = "new-architecture", checkpoint, "--without", "apertus", "-o", tmp_path / "drafts"
    code, out, err = run(*command)
    assert code == 0
    assert out.startswith("ApertusForCausalLM: 2 layers, 17 names of tensors\n\nnearest architectures\n  qwen3 ")
    assert "differences from qwen3\n  the checkpoint has no ffn_gate" in out
    files = sorted((tmp_path / "drafts").iterdir())
    assert [path.name for path in files] == ["apertus.py", "apertus_conversion.py"]
    assert [line for line in err.splitlines() if line.startswith("wrote ")] == [f"wrote {path}" for path in files]
    assert f"verify apertus-f32.gguf --architecture {files[0]} --against {checkpoint}" in err
    texts = [path.read_text() for path in files]
    files[0].unlink()
    code, _, err = run(*command)
    assert (code, "apertus_conversion.py: exists; choose another --name or --output" in err) == (2, True)
    assert [path.read_text() for path in (tmp_path / "drafts").iterdir()] == texts[1:]


def test_a_checkpoint_unlike_all_others_is_noted(run: Run, tmp_path: Path) -> None:
    config = {"architectures": ["OtherBertModel"], "model_type": "other", "d_model": 8}
    names = [f"stack.{n}.{kind}.w" for n in range(2) for kind in ("mixing", "carry", "gatherer", "spread")]
    (tmp_path / "config.json").write_text(json.dumps(config))
    index = {"weight_map": dict.fromkeys(names, "a.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    code, out, _ = run("new-architecture", tmp_path, "--dry-run")
    assert code == 0
    assert "OtherBertModel: 2 layers, 4 names of tensors, whose shapes are unknown: the safetensors files are" in out
    assert "\nthe class looks like an encoder: only decoders are compared, not encoders and draft heads\n" in out
    assert "no known architecture is near: the drafts are only a beginning" in out
    assert '"mixing.w": "TODO",  # TODO' in out


def test_the_guide_has_the_real_report(run: Run, tmp_path: Path) -> None:
    folder = reference_models.checkpoint("plm", tmp_path)
    code, out, _ = run("new-architecture", folder, "--without", "plm", "-o", tmp_path)
    assert (code, f"```text\n{out}```" in GUIDE.read_text(encoding="utf-8")) == (0, True), out


def test_a_known_class_is_named(run: Run, checkpoint: Path) -> None:
    code, out, err = run("new-architecture", checkpoint)
    assert (code, out) == (0, "ApertusForCausalLM is known: its architecture is apertus\n")
    assert err == f"convert it: localinfer quantize {checkpoint} apertus-bf16.gguf BF16\n"
    assert json.loads(run("new-architecture", checkpoint, "--json")[1]) == {
        "class": "ApertusForCausalLM", "known": "apertus",
    }  # fmt: skip


def test_a_dry_run_prints_the_files(run: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoint)
    before = sorted(checkpoint.iterdir())
    code, out, _ = run("new-architecture", ".", "--without", "apertus", "--dry-run")
    assert code == 0
    assert "# apertus.py\n" in out
    assert "\nAPERTUS = replace(\n    QWEN3,\n" in out
    found = json.loads(run("new-architecture", ".", "--without", "apertus", "--dry-run", "--json")[1])
    assert found["nearest"][0]["architecture"] == "qwen3"
    assert found["nearest"][0]["missing"] == ["ffn_gate"]
    assert all(text in out for text in found["files"].values())
    assert sorted(checkpoint.iterdir()) == before


def test_the_checkpoint_of_a_known_architecture_with_another_class(run: Run, tmp_path: Path) -> None:
    folder = reference_models.checkpoint("llama3", tmp_path)
    edit_json(folder / "config.json", lambda config: config.update(architectures=["NewForCausalLM"]))
    code, out, err = run("new-architecture", folder, "-o", tmp_path)
    assert (code, "tensors and configuration are those of llama" in out) == (0, True)
    conversion, model = tmp_path / "llama_conversion.py", tmp_path / "new.gguf"
    assert f"--conversion {conversion}" in err
    assert run("quantize", folder, model, "F32", "--conversion", conversion)[0] == 0
    assert run("inspect", model)[0] == 0


OWN = """from dataclasses import replace

from localinfer.conversion.architectures.llama import LLAMA

BY_CLASS = {"NewForCausalLM": replace(LLAMA, name="new", name_map_architecture="llama")}
"""


def test_a_conversion_of_ones_own_needs_a_graph(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, model = reference_models.checkpoint("llama3", tmp_path), tmp_path / "new.gguf"
    edit_json(folder / "config.json", lambda config: config.update(architectures=["NewForCausalLM"]))
    (tmp_path / "own.py").write_text(OWN)
    command = "quantize", folder, model, "F32", "--conversion", tmp_path / "own.py"
    code, _, err = run(*command)
    assert (code, "the converted file cannot be run: general.architecture: 'new' is not supported" in err) == (3, True)
    assert not model.exists()
    graph = Path(architectures.__file__).with_name("llama.py")
    assert run(*command, "--architecture", graph)[0] == 0
    model.unlink()
    monkeypatch.setenv("LOCALINFER_ARCHITECTURE", str(graph))
    assert run(*command)[0] == 0


@pytest.mark.parametrize(("config", "arguments", "code", "message"), [
    ({}, ["--name", "New"], 2, "error: --name: 'New' (lower-case letters and digits"),
    ({}, ["--name", "lambda"], 2, "error: --name: 'lambda' (lower-case letters and digits"),
    ({}, ["--name", ""], 2, "error: --name: '' (lower-case letters and digits"),
    ({}, ["--without", "nosuch"], 2, "error: --without: nosuch: no such architecture\n"),
    ({"hidden_act": "gelu"}, ["--name", "qwen3"], 2, "error: --name: there is an architecture qwen3"),
    ({"hidden_act": "gelu"}, ["--name", "falcon-h1"], 2, "error: --name: there is an architecture falcon-h1"),
    ({"model_type": None}, [], 2, "error: --name: must be given, as model_type in config.json is: ''"),
    ({}, ["--name", "new", "-o", "config.json/x", "--json"], 2, "error: --output: config.json/x: Not a directory"),
])  # fmt: skip
def test_bad_input_is_one_line(
    config: dict[str, object], arguments: list[str], code: int, message: str, run: Run, checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    edit_json(checkpoint / "config.json", lambda values: values.update({"architectures": ["NewForCausalLM"], **config}))
    monkeypatch.chdir(checkpoint)
    actual, out, err = run("new-architecture", ".", *arguments)
    assert (actual, out, err.startswith(message), err.count("\n")) == (code, "", True, 1), err


def test_damaged_checkpoints(run: Run, tmp_path: Path) -> None:
    code, _, err = run("new-architecture", tmp_path / "nothing")
    assert (code, err) == (3, f"error: {tmp_path}/nothing: no such directory\n")
    code, _, err = run("new-architecture", tmp_path)
    assert (code, err) == (1, f"error: {tmp_path}: there is no config.json: not a checkpoint directory\n")
    folder = reference_models.checkpoint("llama3", tmp_path)
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    edit_json(folder / "config.json", lambda values: values.update(architectures=["NewForCausalLM"]))
    code, _, err = run("new-architecture", folder)
    assert (code, "model.safetensors: not a safetensors file" in err, err.count("\n")) == (1, True, 1)
