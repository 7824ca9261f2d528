"""`localinfer fit`: the plan, the file and its figures, interrupted runs, and what is wrong with the arguments."""

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import CHECKPOINTS
from locations import DATA
from terminal import Terminal
from tiny import tiny_llama

from cli import __main__
from localinfer.fit import measurements
from localinfer.gguf.reader import open_gguf
from localinfer.runtime.row_access import row_access_timing

TEXT = DATA / "varied.txt"
SECONDS = 300  # kernels may have to be compiled
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("source") / "m.gguf", type="F16", n_layer=2)


@pytest.fixture(autouse=True)
def _in_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of each type is not measured until it repeats, as in `test_choice.py`: with two layers, and while other
    tests run, that takes half a minute."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(row_access_timing, "MIN_ROUND_SECONDS", 0.01)
    monkeypatch.setattr(row_access_timing, "MAX_SECONDS", 0.0)


def test_file_and_figures(run: Run, model: Path, tmp_path: Path) -> None:
    """The printed figures are those of the file, and the printed command runs it."""
    code, out, err = run("fit", model, "--task", TEXT, "--json", "-t", 1, "-c", 256)
    assert code == 0, err
    assert [path.name for path in tmp_path.iterdir()] == ["m-fit.gguf"]
    found, f = json.loads(out), open_gguf(tmp_path / "m-fit.gguf")
    assert found["measured"]["size"] == found["predicted"]["size"] == f.size
    assert {name: f.tensors[name].type_name for name in found["types"]} == found["types"]
    assert found["output_layer"] == f.tensors["token_embd.weight"].type_name
    assert found["predicted"]["size"] <= found["reference"]["size"]
    assert found["predicted"]["kl_divergence"] <= found["reference"]["kl_divergence"]
    assert 0.2 < found["measured"]["kl_divergence"] / found["predicted"]["kl_divergence"] < 5
    assert found["measured"]["tokens_per_second"] > 0
    assert found["speculation"].keys() == {"none", "ngram"}
    arguments = shlex.split(found["command"])[1:]
    assert arguments[:4] == ["chat", "m-fit.gguf", "-c", "256"]
    assert run(*arguments, "Hello", "-n", 2)[0] == 0


def test_dry_run_prints_the_plan_only(run: Run, model: Path, tmp_path: Path) -> None:
    code, out, _ = run("fit", model, "--task", TEXT, "--dry-run", "-t", 1, "--ram", "1G", "-c", 128)
    assert code == 0
    assert re.search(r"memory for the model +953\.7 MiB", out)
    assert re.search(r"KV cache and scratch, 128 tokens", out)
    assert re.search(r"Q4_K_M +\d+\.\d +\d+", out)
    assert re.search(r"sensitivity of each tensor +about \d+:\d\d", out)
    assert list(tmp_path.iterdir()) == []


def test_checkpoint(run: Run, tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINTS / "qwen2", tmp_path / "checkpoint")
    code, out, err = run("fit", "checkpoint/", "--task", TEXT, "-t", 1, "-c", 64, "-o", "q.gguf")
    assert code == 0, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "q.gguf"]
    assert re.search(r"KL divergence, nats per token +\d\.\d+ +\d\.\d+ \+/- \d\.\d+", out)
    assert out.splitlines()[-1].startswith("localinfer ")


def test_interrupted_run_is_resumed(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run does not measure again, and removes what was kept. A dry run in between leaves it. Another text
    starts anew."""
    arguments = "fit", model, "--task", TEXT, "-t", 1, "-o", "out.gguf"

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(measurements, "measure_lab", interrupted)
        code, _, err = run(*arguments)
    assert code == 130
    assert "run the same command to resume" in err
    folder = tmp_path / ".out.gguf.fit"
    before = (folder / "imatrix.gguf").stat().st_mtime_ns
    assert run(*arguments, "--dry-run")[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(measurements, "Collector", interrupted)
        patch.setattr(measurements, "measure_divergence", interrupted)
        assert run(*arguments)[0] == 130
    assert (folder / "imatrix.gguf").stat().st_mtime_ns == before
    (tmp_path / "other.txt").write_text(TEXT.read_text(encoding="utf-8") + " more", encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(measurements, "Collector", interrupted)
        assert run("fit", model, "--task", "other.txt", "-t", 1, "-o", "out.gguf", "--force")[0] == 130
    assert not folder.exists()


@pytest.mark.skipif(os.name != "posix", reason="terminals")
def test_progress_on_a_terminal(terminal: Callable[..., Terminal], model: Path, tmp_path: Path) -> None:
    shown = terminal("fit", str(model), "--task", str(TEXT), "-t", "1", "-o", str(tmp_path / "out.gguf"))
    for text in ("this machine", "tensors: about ", "chosen: ", "KL divergence: 0 %", "localinfer chat"):
        shown.expect(text, SECONDS)
    assert shown.wait() == 0
    assert [path.name for path in tmp_path.iterdir() if "out.gguf" in path.name] == ["out.gguf"]


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["missing.gguf"], 3, "missing.gguf: No such file or directory"),
        (["MODEL", "--task", "missing.txt"], 1, "missing.txt: No such file or directory"),
        (["MODEL", "--task", "short.txt"], 2, "--task: a text of "),
        (["MODEL", "--ram", "much"], 2, "--ram: must be a number of bytes"),
        (["MODEL", "-o", "out.bin"], 2, "--output: must end in .gguf, not out.bin"),
        (["MODEL", "-o", "missing/out.gguf"], 2, "--output: missing/out.gguf: No such file or directory"),
        (["MODEL", "-o", "there.gguf"], 2, "there.gguf: exists already; --force replaces it"),
        (["MODEL", "-o", "MODEL", "--force"], 2, "is an input file"),
        (["MODEL", "--tokens-per-second", "-3"], 2, "--tokens-per-second"),
        (["MODEL", "--tokens-per-second", "nan"], 2, "--tokens-per-second: must be a finite number, not nan"),
        (["QUANTIZED"], 2, "is Q8_0; the source must be F32, F16 or BF16"),
    ],
)
def test_bad_arguments(run: Run, model: Path, tmp_path: Path, arguments: list[str], code: int, problem: str) -> None:
    (tmp_path / "short.txt").write_text("word", encoding="utf-8")
    (tmp_path / "there.gguf").touch()
    names = {"MODEL": model, "QUANTIZED": tmp_path / "q.gguf"}
    if "QUANTIZED" in arguments:
        tiny_llama(tmp_path / "q.gguf", type="Q8_0")
    before = sorted(tmp_path.iterdir())
    actual = run("fit", *(names.get(each, each) for each in arguments))
    assert actual[:2] == (code, "")
    assert problem in actual[2]
    assert len(actual[2].splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_goals_that_cannot_be_met(run: Run, model: Path, tmp_path: Path) -> None:
    """They are errors after the plan is shown, and no file is left. Of the model, nothing is measured before."""
    code, out, err = run("fit", model, "--task", TEXT, "--ram", "1000", "-t", 1)
    assert (code, out) == (2, "")
    assert "--ram: 1,000 bytes are not enough: the smallest file needs" in err.splitlines()[-1]
    needed = int(re.findall(r"the smallest file needs ([\d,]+)", err)[0].replace(",", ""))
    code, out, err = run("fit", model, "--task", TEXT, "--ram", needed - 1, "-t", 1)
    assert (code, out) == (2, "")
    assert f"--ram: {needed - 1:,} bytes are not enough" in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_lab_of_another_model(run: Run, model: Path, tmp_path: Path) -> None:
    other = tiny_llama(tmp_path / "other.gguf", type="F16", n_layer=3)
    assert __main__.run(["lab", str(other), "-f", str(TEXT), "-c", "32", "-o", "lab.json"]) == 0
    code, _, err = run("fit", model, "--task", TEXT, "--lab", "lab.json", "-t", 1)
    assert code == 2
    assert err.splitlines()[-1].endswith("--lab: lab.json: has the tensors of another model")
