"""64-bit ARM under emulation: the byte products of each NEON variant, and a tiny model from end to end.

A CPU with dotprod but without i8mm is emulated exactly, so that an unsupported instruction ends the process.
"""

import os
import platform
import subprocess
from pathlib import Path

import naive
import numpy as np
import pytest
from filelock import FileLock
from locations import CHECKOUT
from tiny import tiny_llama

from localinfer import paths
from localinfer.gguf.reader import open_gguf

SETUP = CHECKOUT / "tests" / "arm64" / "setup.sh"
EMULATED = {"neoverse-n1": "neoverse-n1", "apple-m2": "max,sve=off,sme=off"}


@pytest.fixture(scope="module")
def arm64() -> Path:
    """Return the emulated Python interpreter. It is built once, because that takes a while."""
    if platform.machine() != "x86_64" or not hasattr(os, "getuid") or os.getuid() != 0:
        pytest.skip("emulating arm64 needs root on an x86-64 machine")
    folder = paths.cache_root() / "test-arm64"
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / "python").exists():
            set_up(folder)
    return folder / "python"


def set_up(folder: Path) -> None:
    """Build the emulated interpreter in `folder`, or skip the test if that fails."""
    try:
        created = subprocess.run([SETUP, folder], capture_output=True, text=True, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"no emulated arm64 Python: {error}")
    if created.returncode:
        pytest.skip(f"no emulated arm64 Python: {created.stderr.strip().splitlines()[-1:]}")


def emulate(python: Path, name: str, *arguments: str) -> str:
    """Run the interpreter for a CPU, and return its output."""
    chosen = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": "", "QEMU_CPU": EMULATED[name]}
    environment = os.environ | chosen | {"PYTHONPATH": str(CHECKOUT)}
    command = [python, *arguments]
    result = subprocess.run(command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, timeout=1200)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
    return result.stdout


@pytest.mark.parametrize("name", EMULATED)
def test_byte_products(arm64: Path, name: str) -> None:
    assert "passed" in emulate(arm64, name, "-m", "pytest", "-q", "-x", "tests/quant/jit/test_simd.py")


def test_tiny_model_end_to_end(arm64: Path, tmp_path: Path) -> None:
    path, out, tokens = tiny_llama(tmp_path / "tiny.gguf", n_layer=1), tmp_path / "logits.npy", [1, 5, 9, 200, 33, 7, 2]
    emulate(arm64, "neoverse-n1", "tests/arm64/logits.py", str(path), str(out), *map(str, tokens))
    np.testing.assert_allclose(np.load(out), naive.forward(naive.Model(open_gguf(path)), tokens), atol=0.02)
