"""Truncating or overwriting a model file in use: a one-line error and exit code 1 instead of SIGBUS."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from locations import CHECKOUT


@pytest.mark.parametrize("harm", ["truncate", "overwrite"])
def test_model_file_changes_during_an_answer(harm: str, smollm2: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy(smollm2, path)
    command = [sys.executable, "-m", "cli", "generate", str(path), "-p", "Once", "-n", "4000", "--ignore-eos"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    assert process.stdout.read(20)  # the answer has started
    if harm == "truncate":
        os.truncate(path, 4096)
    else:
        time.sleep(0.01)  # so that the modification time differs
        with path.open("r+b") as file:
            file.seek(10_000_000)
            file.write(os.urandom(1 << 20))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    [line] = [line for line in err.decode().splitlines() if line.startswith("error")]
    assert "m.gguf" in line
    assert "changed or truncated while in use" in line
    assert "Traceback" not in err.decode()
