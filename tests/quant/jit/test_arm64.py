"""64-bit ARM under emulation: the byte products of each NEON variant, and a tiny model from end to end.

A CPU with dotprod but without i8mm is emulated exactly, so that an unsupported instruction ends the process. The
kernels of the model are compiled by a native process, because compiling takes long under emulation.
"""

import base64
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import naive
import numpy as np
import pytest
from filelock import FileLock
from locations import CHECKOUT, PYTHONPATH, TESTS
from tiny import tiny_llama

from localinfer import paths
from localinfer.gguf.reader import open_gguf
from localinfer.kernels.signatures import ADD_NORM
from quant.jit.kernel import make_kernel

SETUP = TESTS / "arm64" / "setup.sh"
EMULATED = {"neoverse-n1": "neoverse-n1", "apple-m2": "max,sve=off,sme=off"}
CROSS_COMPILER = [sys.executable, str(TESTS / "harness" / "cross_compiler.py")]


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


def environment(name: str, *python_path: str) -> dict[str, str]:
    """Return the environment variables that select an emulated CPU, and the module search path."""
    chosen = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": "", "QEMU_CPU": EMULATED[name]}
    return os.environ | chosen | {"PYTHONPATH": os.pathsep.join(python_path)}


def run(command: Sequence[str | Path], environment: dict[str, str], text: str = "") -> str:
    """Run a command with `text` as its input, and return its output."""
    result = subprocess.run(
        command, env=environment, cwd=CHECKOUT, input=text, capture_output=True, text=True, timeout=1200)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
    return result.stdout


def emulate(python: Path, name: str, *arguments: str, text: str = "") -> str:
    """Run the interpreter for a CPU, and return its output."""
    return run([python, *arguments], environment(name, str(CHECKOUT)), text)


@pytest.mark.parametrize("name", EMULATED)
def test_byte_products(arm64: Path, name: str) -> None:
    assert "passed" in emulate(arm64, name, "-m", "pytest", "-q", "-x", "tests/quant/jit/test_simd.py")


def test_compiler(arm64: Path) -> None:
    """numba compiles a kernel under emulation, and a native process cross-compiles it to the same object file."""
    kernel = make_kernel(ADD_NORM.small_batch, ADD_NORM.parameters, ADD_NORM.floats, {})
    emulated = emulate(arm64, "neoverse-n1", "-m", "quant.jit.compiler", text=kernel.to_json())
    assert kernel.symbol.encode() in base64.b64decode(emulated)
    assert emulated == run(
        [*CROSS_COMPILER, "aarch64-unknown-linux-gnu"], environment("neoverse-n1", *PYTHONPATH), kernel.to_json())


def test_tiny_model_with_kernels_for_macos(arm64: Path, tmp_path: Path) -> None:
    """They are ELF object files, so the emulated Linux runs them."""
    path, out, tokens = tiny_llama(tmp_path / "tiny.gguf", n_layer=1), tmp_path / "logits.npy", [1, 5, 9, 200, 33, 7, 2]
    compiler = tmp_path / "compiler"
    native = ["env", "-u", "PYTHONHOME", "-u", "PYTHONNOUSERSITE", f"PYTHONPATH={os.pathsep.join(PYTHONPATH)}"]
    command = shlex.join([*native, *CROSS_COMPILER, "arm64-apple-macosx"])
    compiler.write_text(f"#!/bin/sh\nexec {command}\n")
    compiler.chmod(0o700)
    emulate(arm64, "neoverse-n1", "tests/arm64/logits.py", str(path), str(out), str(compiler), *map(str, tokens))
    np.testing.assert_allclose(np.load(out), naive.forward(naive.Model(open_gguf(path)), tokens), atol=0.02)
