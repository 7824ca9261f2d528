"""Entries that `cp` and `create` add to the user's models.toml, and Ollama's Modelfile."""

from collections.abc import Callable
from pathlib import Path

import pytest

from localinfer import paths
from localinfer.errors import LocalInferError, UnsupportedError, UsageError
from localinfer.hub import resolve
from localinfer.hub.modelfile import parse_modelfile

Run = Callable[..., tuple[int, str, str]]
MODELFILE = '''# comment
FROM ./model.gguf
PARAMETER temperature 0.5
parameter num_ctx 4096
PARAMETER stop "<|user|>"
PARAMETER stop END
PARAMETER num_gpu 99

SYSTEM """
You are Mario,
"the plumber".
"""
LICENSE """none"""
'''


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LOCALINFER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").touch()
    return tmp_path / "config" / "models.toml"


def test_modelfile() -> None:
    parsed = parse_modelfile(MODELFILE, "Modelfile")
    assert parsed.source == "./model.gguf"
    assert parsed.options == {
        "temp": 0.5, "ctx_size": 4096, "stop": ["<|user|>", "END"], "system_prompt": 'You are Mario,\n"the plumber".',
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind", "problem"),
    [
        ("", LocalInferError, "FROM is missing"),
        ("FROM x\nWRONG y", LocalInferError, "WRONG: no such instruction"),
        ("FROM x\n\nhello", LocalInferError, "line 3: must be an instruction"),
        ("FROM x\nPARAMETER top_k many", LocalInferError, "PARAMETER top_k: must be a number, not many"),
        ("FROM x\nPARAMETER warp 1", UnsupportedError, "PARAMETER warp: not supported"),
        ("FROM x\nADAPTER a.gguf", UnsupportedError, "ADAPTER: adapters are not supported"),
        ("FROM x\nTEMPLATE {{ .Prompt }}", UnsupportedError, "TEMPLATE: templates of Ollama"),
        ("FROM x\nTEMPLATE {{- range $i, $_ := .Messages }}", UnsupportedError, "TEMPLATE: templates of Ollama"),
        ("FROM x\nTEMPLATE chat", LocalInferError, "TEMPLATE: contains neither {{ nor {%"),
        ("FROM x\nPARAMETER cache_type_k q9", UsageError, "PARAMETER cache_type_k: must be"),
        ("FROM x\nPARAMETER chat_template chatml", UnsupportedError, "PARAMETER chat_template: not supported"),
    ],
)
def test_invalid_modelfiles(text: str, kind: type[LocalInferError], problem: str) -> None:
    with pytest.raises(kind, match=f"^Modelfile: {problem}") as error:
        parse_modelfile(text, "Modelfile")
    assert type(error.value) is kind


def test_create_and_cp(run: Run, tmp_path: Path, config: Path) -> None:
    config.parent.mkdir()
    config.write_text("# mine\n[models.other]\npath = \"other.gguf\"\n")
    (tmp_path / "Modelfile").write_text(MODELFILE)
    assert run("create", "mario")[0] == 0
    assert run("cp", "mario", "luigi")[0] == 0
    assert config.read_text().startswith("# mine\n[models.other]\n")
    for name in ("mario", "luigi"):
        assert resolve.find(name) == tmp_path / "model.gguf"
        options = resolve.default_options(name)
        assert options["stop"] == ("<|user|>", "END")
        assert (options["temp"], options["system_prompt"]) == (0.5, 'You are Mario,\n"the plumber".')
    assert run("cp", "hf:ggml-org/gemma-3-1b-it-GGUF:Q8_0", "gemma")[0] == 0
    assert resolve.model_registry().entries["gemma"].source == "hf:ggml-org/gemma-3-1b-it-GGUF:Q8_0"


def test_rm_of_a_file_with_several_names(
    run: Run, tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rm` says which names lose their file, and removes only the name if `cp` added it."""
    monkeypatch.setattr(paths, "models_dir", lambda: tmp_path)
    entry = resolve.model_registry().entries["smollm2"]
    file = entry.file
    with file.open("wb") as handle:
        handle.truncate(entry.size)
    assert run("cp", "smollm2", "small")[0] == 0
    assert run("cp", "smollm2", "tiny")[0] == 0
    code, _, err = run("rm", "--yes", "small")
    assert (code, err, file.exists()) == (0, "small: removed, 0.0 MiB freed\n", True)
    assert "small" not in resolve.model_registry().entries
    code, _, err = run("rm", "--yes", "smollm2")
    assert (code, file.exists()) == (0, False)
    assert "warning: smollm2 is also the file of tiny\n" in err
    assert run("rm", "--yes", "tiny")[0] == 0  # its file is gone


def test_rm_leaves_other_entries_as_they_are(run: Run, tmp_path: Path, config: Path) -> None:
    config.parent.mkdir(exist_ok=True)
    others = (
        '# mine\ndefault = "smollm2"\n\n[models.a]\nsource = "hf:a/b"\n'
        'options = { stop = [\n"]",\n"[models.b]"\n] }\n'
    )
    config.write_text(
        others + '\n# about b\n[models.b]\nsource = "hf:a/c"\n[models.b.options]\ntop_k = 3\n\n# about c\n'
        '[models."c"]\nsource = "hf:a/d"\n'
    )
    assert run("rm", "--yes", "b")[0] == 0
    assert config.read_text() == others + '\n# about b\n\n# about c\n[models."c"]\nsource = "hf:a/d"\n'
    config.write_text('default = "a"\nmodels = { a = { source = "hf:a/b" }, b = { source = "hf:a/c" } }\n')
    before = config.read_text()
    for name, problem in (("a", "is the default model"), ("b", "cannot be cut out of")):
        code, _, err = run("rm", "--yes", name)
        assert (code, problem in err, err.count("\n")) == (2, True, 1)
    assert config.read_text() == before


def test_rm_of_a_created_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`create --quantize` made it, so it goes with its last name."""
    monkeypatch.setattr(paths, "models_dir", lambda: tmp_path)
    made = tmp_path / "made-q8_0.gguf"
    made.write_bytes(b"GGUF")
    for name in ("made", "again"):
        assert run("cp", made, name)[0] == 0
    assert run("rm", "--yes", "made")[0] == 0
    assert made.exists()
    assert run("rm", "--yes", "again")[0] == 0
    assert not made.exists()


@pytest.mark.parametrize(
    ("source", "name", "code", "problem"),
    [
        ("model.gguf", "smollm2", 2, "smollm2: is in use"),
        ("model.gguf", "Upper Case", 2, "invalid name"),
        ("missing.gguf", "mine", 3, "missing.gguf"),
    ],
)
def test_errors(run: Run, config: Path, source: str, name: str, code: int, problem: str) -> None:
    actual, _, err = run("cp", source, name)
    assert actual == code
    assert problem in err
    assert not config.exists()
