"""`localinfer config`: every setting and its source."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import tiny_llama

from cli import __main__
from localinfer.machine.resources import default_threads
from localinfer.options import FLAGS

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: object) -> tuple[int, str, str]:
        code = __main__.run(["config", *map(str, arguments)])
        return (code, *capsys.readouterr())

    return command


def test_sources(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tiny_llama(tmp_path / "m.gguf", **{"general.sampling.top_k": 7, "general.sampling.temp": 0.5})
    (tmp_path / "models.toml").write_text(
        '[models.mine]\npath = "m.gguf"\noptions = { top_p = 0.5, min_p = 0.25, temp = 0.1 }\n'
    )
    monkeypatch.setenv("LOCALINFER_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("LOCALINFER_MIN_P", "0.125")
    code, out, err = run("mine", "-c", "64", "--json")
    assert (code, err) == (0, "")
    actual = json.loads(out)
    assert actual["options"].keys() == FLAGS.keys()
    expected = {
        "ctx_size": (64, "flag", "--ctx-size"),
        "min_p": (0.125, "environment", "LOCALINFER_MIN_P"),
        "top_p": (0.5, "models.toml", "models.toml: mine.options.top_p"),
        "temp": (0.1, "models.toml", "models.toml: mine.options.temp"),
        "top_k": (7, "file", f"{tmp_path}/m.gguf: general.sampling.top_k"),
        "keep": (4, "default", ""),
    }
    for name, setting in expected.items():
        assert tuple(actual["options"][name][key] for key in ("value", "source", "name")) == setting
    assert actual["variables"]["LOCALINFER_CONFIG_DIR"] == str(tmp_path)
    assert actual["locations"]["models.toml"] == str(tmp_path / "models.toml")


def test_model_from_another_source(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Options of its file are known if the file is on this machine."""
    folder = tmp_path / "lmstudio" / "owner" / "repo"
    folder.mkdir(parents=True)
    (tmp_path / "models.toml").write_text(
        '[models.mine]\nsource = "lmstudio:owner/repo"\noptions = { min_p = 0.5 }\n[models.hub]\nsource = "hf:a/b"\n'
    )
    tiny_llama(folder / "m.gguf", **{"general.sampling.top_k": 7})
    monkeypatch.setenv("LOCALINFER_CONFIG_DIR", str(tmp_path))
    monkeypatch.setattr("localinfer.hub.lm_studio.directories", lambda: [tmp_path / "lmstudio"])
    options = json.loads(run("mine", "--json")[1])["options"]
    assert (options["top_k"]["value"], options["min_p"]["value"]) == (7, 0.5)
    assert json.loads(run("hub", "--json")[1])["options"]["top_k"]["source"] == "default"


def test_table(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALINFER_CTXSIZE", "5")
    monkeypatch.setenv("LOCALINFER_STOP", "\n")
    code, out, err = run("--temp", "0")
    assert code == 0
    assert err == "warning: LOCALINFER_CTXSIZE: unknown environment variable; did you mean LOCALINFER_CTX_SIZE?\n"
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith("  ")}
    assert rows["--temp"] == ["0.0", "--temp"]
    assert rows["--stop"] == [r"'\n'", "LOCALINFER_STOP"]
    assert rows["--threads"] == ["0", "(automatic:", f"{default_threads()})", "default"]
    assert rows["--threads-batch"][:4] == ["0", "(same", "as", "--threads)"]
    assert rows["--ctx-size"][:2] == ["0", "(automatic:"]
    assert rows["--system-prompt"] == ["-", "default"]


def test_cache_directory_holds_evaluated_prompts(run: Run) -> None:
    _, out, _ = run()
    (line,) = [line for line in out.splitlines() if "LOCALINFER_CACHE_DIR" in line]
    assert "evaluated prompts" in line


def test_errors(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("nosuch")[0] == 3
    monkeypatch.setenv("LOCALINFER_TEMP", "hot")
    code, out, err = run()
    assert (code, out) == (2, "")
    assert err.startswith("error: LOCALINFER_TEMP: must be a number")
