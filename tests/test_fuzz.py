"""The fuzzer itself: it runs, its guard pages detect out-of-bounds accesses, and it reports its findings."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from guard_pages import guard_gaps, guarded_memory, is_intact
from locations import PYTHONPATH, TESTS
from tiny import tiny_llama

PROGRAM = """
import ctypes, sys
from pathlib import Path
from guard_pages import guarded_memory
from fuzz import fork_server

def run_file(path, model_options, choose):
    memory = guarded_memory(100)
    {body}
    return ""

fork_server.run_file = run_file
folder = Path(sys.argv[1])
mutants = fork_server.ModelServer([fork_server.SeedModel(folder / "model.gguf", {{}})], folder, folder / "findings", 0)
for seed, outcome in mutants.run(range(2)):
    print(f"{{seed}} {{outcome.kind}}: {{outcome.text}}".splitlines()[0])
"""


def test_mutants_are_refused_or_run(tmp_path: Path) -> None:
    model, findings = tiny_llama(tmp_path / "model.gguf"), tmp_path / "findings"
    command = [TESTS / "fuzz", model, "--like", "none of them", "-n", "40", "--kernels", "0", "--findings", findings]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "40 of 40" in done.stdout
    assert "ran" in done.stdout
    assert "refused" in done.stdout
    assert not findings.exists()


@pytest.mark.parametrize("target", ["", "SnapshotFile", "ImageFile", "SoundFile", "VideoFile", "ProjectorFile"])
def test_mutants_of_other_files(target: str, tmp_path: Path) -> None:
    options = ["--files", "-n", "300", "--kernels", "0", "--findings", tmp_path / "findings"]
    options += ["--like", target] if target else []
    done = subprocess.run([sys.executable, TESTS / "fuzz", *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "300 of 300" in done.stdout
    assert "ran" in done.stdout
    assert "refused" in done.stdout


@pytest.mark.parametrize(
    ("body", "kind", "output"),
    [
        ("pass", "ran", ""),
        ("ctypes.string_at(memory.ctypes.data, 101)", "signal", "SIGSEGV"),
        ("ctypes.memset(memory.ctypes.data + 100, 0, 1)", "signal", "SIGSEGV"),
        ("1 / 0", "error", "Traceback"),
        ("guarded_memory(600 << 20)[:] = 1", "much memory", "(59|6.). MiB"),  # the peak is not exact
        ("fork_server.os._exit(3)", "no answer", "exit"),
    ],
)
def test_findings_are_reported(body: str, kind: str, output: str, tmp_path: Path) -> None:
    tiny_llama(tmp_path / "model.gguf")
    code = f"import sys; sys.path[:0] = {PYTHONPATH}\n" + PROGRAM.format(body=body)
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(re.match(f"{seed} {kind}: {output}", line) for seed, line in enumerate(lines)), lines
    names = sorted(path.name for path in (tmp_path / "findings").glob("*"))
    assert names == ([f"{seed}.{suffix}" for seed in range(2) for suffix in ("gguf", "txt")] if kind != "ran" else [])


@pytest.mark.parametrize("size", [0, 1, 64, 4096, 5000])
def test_guarded_memory_has_no_spare_bytes(size: int) -> None:
    memory = guarded_memory(size, 64)
    assert memory.ctypes.data % 64 == 0
    assert not memory.any()
    memory[:] = 1
    assert is_intact(memory)
    trailing_gap = guard_gaps(memory)[1]
    assert len(trailing_gap) == -size % 64
    if len(trailing_gap):
        trailing_gap[0] = 0
        assert not is_intact(memory)
