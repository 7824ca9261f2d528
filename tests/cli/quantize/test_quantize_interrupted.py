"""Calibrated quantization and target sizes: unusual weights, and processes that end in the midst of their work."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from locations import DATA
from tiny import tiny_llama

from cli import __main__
from localinfer.gguf.reader import open_gguf

CALIBRATED = ["Q4_0", "--calibrate", str(DATA / "varied.txt"), "--calibrate-chunks", "2"]
WITH_TARGET = ["--target-bpw", "5"]
Run = Callable[..., tuple[int, str]]
Interrupted = Callable[[str, Sequence[str], signal.Signals], tuple[int, list[str]]]

WAITING = """
import sys, time
from cli.__main__ import main
from cli.quantize import calibration_progress, progress

where = sys.argv.pop(1)

def wait(state):
    if where in state:
        print("waiting", flush=True)
        time.sleep(600)

def replace(kind, name, describe):
    original = getattr(kind, name)
    def replaced(self, *arguments):
        original(self, *arguments)
        wait(describe(self, *arguments))
    setattr(kind, name, replaced)

replace(calibration_progress.CalibrationProgress, "on_step", lambda self, what, fraction: what)
replace(progress.MeasurementProgress, "__call__", lambda self, done, total: "measuring" if done else "")
replace(progress.QuantizationProgress, "__call__", lambda self, tensor, done: f"writing {self.n_finished}.")
sys.argv[0] = "localinfer"
main()
"""


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that quantizes a model in this process: exit code, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(model: Path, *arguments: str) -> tuple[int, str]:
        code = __main__.run(["quantize", str(model), *arguments])
        return code, capsys.readouterr().err

    return run


# --- unusual weights ---


def with_values(path: Path, tensor: str, value: float, *, rows: int = 1) -> Path:
    """Write a model in whose tensor each `rows`-th row has this value everywhere."""
    tiny_llama(path, type="F32", n_layer=2)
    found = open_gguf(path).tensors[tensor]
    values = np.frombuffer(found.data, np.float32).reshape(found.shape).copy()
    values[::rows] = value
    with path.open("r+b") as file:
        file.seek(found.offset)
        file.write(values.tobytes())
    return path


@pytest.mark.parametrize("arguments", [CALIBRATED, WITH_TARGET, [*CALIBRATED[1:], *WITH_TARGET]])
@pytest.mark.parametrize("tensor", ["blk.0.attn_q.weight", "blk.1.ffn_down.weight", "token_embd.weight"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite(
    run: Run, tmp_path: Path, arguments: Sequence[str], tensor: str, value: float
) -> None:
    model = with_values(tmp_path / "m.gguf", tensor, value, rows=5)
    code, err = run(model, "out.gguf", *arguments)
    assert code == 1
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert errors == err.splitlines()[-1:]
    assert "finite" in errors[0] or f"{tensor}: value {value}" in errors[0]
    assert names(tmp_path) == ["m.gguf"]


@pytest.mark.parametrize("arguments", [CALIBRATED, WITH_TARGET, [*CALIBRATED[1:], *WITH_TARGET]])
@pytest.mark.parametrize(
    ("tensor", "rows"),
    [
        ("blk.0.attn_norm.weight", 1),  # all inputs of the projections are zeros
        ("blk.1.ffn_up.weight", 1),  # all inputs of ffn_down are zeros
        ("blk.1.ffn_down.weight", 2), ("token_embd.weight", 3), ("blk.0.attn_output.weight", 1),
    ],
)  # fmt: skip
def test_zeros(run: Run, tmp_path: Path, arguments: Sequence[str], tensor: str, rows: int) -> None:
    model = with_values(tmp_path / "m.gguf", tensor, 0, rows=rows)
    code, err = run(model, "out.gguf", *arguments)
    assert code == 0, err
    assert "Warning" not in err
    for each in open_gguf(tmp_path / "out.gguf").tensors.values():
        values = dequantize(each.data.reshape(each.shape[0], -1), GGMLQuantizationType(each.type))
        assert np.isfinite(values).all(), each.name
        if each.name == tensor:
            assert not values.reshape(each.shape)[::rows].any()
    assert names(tmp_path) == ["m.gguf", "out.gguf"]


# --- processes that end ---


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("source") / "m.gguf", type="F16", n_layer=3, tied=False)


@pytest.fixture(scope="module")
def expected(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files that uninterrupted runs write."""
    contents = {}
    for arguments in (CALIBRATED, WITH_TARGET):
        out = tmp_path_factory.mktemp("whole") / "out.gguf"
        assert __main__.run(["quantize", str(model), str(out), *arguments]) == 0
        contents[arguments[0]] = out.read_bytes()
    return contents


@pytest.fixture
def interrupted(model: Path, environment: dict[str, str]) -> Interrupted:
    """Return a function that starts a process in the current folder, and sends it a signal at some point of its work:
    exit code, lines of stderr."""
    return partial(interrupt, model, environment)


def interrupt(
    model: Path, environment: dict[str, str], where: str, arguments: Sequence[str], number: signal.Signals
) -> tuple[int, list[str]]:
    command = [sys.executable, "-c", WAITING, where, "quantize", str(model), "out.gguf", *arguments, "--force"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)
    assert process.stdout
    assert process.stdout.readline() == "waiting\n", process.communicate()[1]
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    return process.returncode, err.splitlines()


SIGNALS = [(signal.SIGTERM, 143), (signal.SIGINT, 130)]
if os.name == "posix":
    SIGNALS.append((signal.SIGKILL, -signal.SIGKILL))


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize(
    ("where", "done"),
    [("layer 1 of 3: ffn_down", 0), ("layer 2 of 3: collecting inputs", 1), ("output layer: output", 3)],
)
def test_calibration_is_resumed(
    run: Run, interrupted: Interrupted, model: Path, tmp_path: Path, expected: dict[str, bytes], where: str, done: int,
    number: signal.Signals, code: int,
) -> None:  # fmt: skip
    """Also over a file that is to be replaced."""
    (tmp_path / "out.gguf").write_bytes(b"old")
    ended, err = interrupted(where, CALIBRATED, number)
    assert ended == code
    assert not any("Traceback" in line for line in err)
    assert (tmp_path / "out.gguf").read_bytes() == b"old"
    assert {"out.gguf", ".out.gguf.unfinished", ".out.gguf.unfinished.json"} >= set(names(tmp_path))
    if done:
        assert ".out.gguf.unfinished.json" in names(tmp_path)
        if number != signal.SIGKILL:
            assert err[-1] == f"interrupted after layer {done} of 3; run the same command to resume"
    again, lines = run(model, "out.gguf", *CALIBRATED, "--force")
    assert again == 0, lines
    assert (f"resuming after layer {done} of 3" in lines) == (done > 0)
    assert (tmp_path / "out.gguf").read_bytes() == expected[CALIBRATED[0]]
    assert names(tmp_path) == ["out.gguf"]


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize("where", ["measuring", "writing 3."])
def test_a_target_size_starts_anew(
    run: Run, interrupted: Interrupted, model: Path, tmp_path: Path, expected: dict[str, bytes], where: str,
    number: signal.Signals, code: int,
) -> None:  # fmt: skip
    (tmp_path / "out.gguf").write_bytes(b"old")
    ended, err = interrupted(where, WITH_TARGET, number)
    assert ended == code
    assert not any("Traceback" in line for line in err)
    assert (tmp_path / "out.gguf").read_bytes() == b"old"
    if number != signal.SIGKILL:
        assert names(tmp_path) == ["out.gguf"]
    assert run(model, "out.gguf", *WITH_TARGET, "--force")[0] == 0
    assert (tmp_path / "out.gguf").read_bytes() == expected[WITH_TARGET[0]]
    assert names(tmp_path) == ["out.gguf"]
