"""64-bit ARM under emulation: the byte products of each NEON variant, and a tiny model from end to end.

A CPU with dotprod but without i8mm is emulated exactly, so that an unsupported instruction ends the process. SME2 is
emulated as Apple M4 has it: with vectors of 64 bytes, without NEON in streaming mode, without SVE outside of it. The
kernels of products and of the model are compiled by a native process, because compiling takes long under emulation.
"""

import base64
import hashlib
import os
import platform
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from emulation import CROSS_COMPILER, differing_products, emulate, environment, run, write_compiler
from filelock import FileLock
from locations import CHECKOUT, PYTHONPATH, TESTS
from tiny import tiny_llama

from localinfer import naive, paths
from localinfer.gguf.reader import open_gguf
from localinfer.kernels.signatures import ADD_NORM
from quant.jit.kernel import make_kernel

SETUP = TESTS / "arm64" / "setup.sh"
# Rows, columns and tokens of products, for a format and a number of passes: a format with mins and one with a zero
# point, with groups of 32 columns and of 16, rows with many records and with few.
PRODUCTS = {("Q4_K", 1): (35, 40 * 256, 9), ("Q6_K", 2): (67, 3 * 256, 37)}


@pytest.fixture(scope="module")
def arm64() -> Path:
    """Return the emulated Python interpreter. It is built once, because that takes a while."""
    if platform.machine() != "x86_64" or not hasattr(os, "getuid") or os.getuid() != 0:
        pytest.skip("emulating arm64 needs root on an x86-64 machine")
    folder = paths.cache_root() / f"test-arm64-{hashlib.sha256(SETUP.read_bytes()).hexdigest()[:8]}"
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


@pytest.fixture(scope="module")
def sme2(arm64: Path) -> Path:
    """Return the emulated Python interpreter, if the emulator has SME2: qemu before version 10.1 has not."""
    text = run([arm64.with_name("qemu"), "--version"], dict(os.environ))
    version = re.search(r"version (\d+)\.(\d+)", text)
    assert version
    if (int(version[1]), int(version[2])) < (10, 1):
        pytest.skip(f"no emulated SME2: qemu has version {version[1]}.{version[2]}")
    return arm64


def run_byte_products(python: Path, name: str, tests: str) -> str:
    """Run the tests of `test_simd` whose names contain `tests`, and return the output."""
    return emulate(python, name, "-m", "pytest", "-q", "-x", "tests/quant/jit/test_simd.py", "-k", tests)


@pytest.mark.parametrize("name", ["neoverse-n1", "apple-m2"])
def test_byte_products(arm64: Path, name: str) -> None:
    assert "passed" in run_byte_products(arm64, name, "test")


def test_outer_products(sme2: Path) -> None:
    """The other products of apple-m4 are those of apple-m2."""
    assert "passed" in run_byte_products(sme2, "apple-m4", "outer")


@pytest.mark.parametrize(("emulated", "isa"), [("max,sme512=on", "neon-sme"), ("max,sme256=on", "neon-i8mm")])
def test_sme_is_selected_if_vectors_have_64_bytes(sme2: Path, emulated: str, isa: str) -> None:
    """The name of the CPU alone keeps the features of the host."""
    chosen = environment("apple-m4", str(CHECKOUT)) | {"QEMU_CPU": emulated}
    del chosen["NUMBA_CPU_FEATURES"]
    assert run([sme2, "-c", "from quant.jit import cpu; print(cpu.target().isa)"], chosen).strip() == isa


def test_compiler(arm64: Path) -> None:
    """numba compiles a kernel under emulation, and a native process cross-compiles it to the same object file."""
    kernel = make_kernel(ADD_NORM.small_batch, ADD_NORM.parameters, ADD_NORM.floats, {})
    emulated = emulate(arm64, "neoverse-n1", "-m", "quant.jit.compiler", text=kernel.to_json())
    assert kernel.symbol.encode() in base64.b64decode(emulated)
    compiler = [*CROSS_COMPILER, "aarch64-unknown-linux-gnu"]
    assert emulated == run(compiler, environment("neoverse-n1", *PYTHONPATH), kernel.to_json())


def test_outer_products_give_the_same_bits(sme2: Path, tmp_path: Path) -> None:
    """Products equal those of this CPU, whatever its instruction set.

    `tests/benchmarks/checks/sme_products.py` compares all formats.
    """
    assert not differing_products(sme2, "apple-m4", "matmul", PRODUCTS, tmp_path)


def test_tiny_model_with_kernels_for_macos(arm64: Path, tmp_path: Path) -> None:
    """They are ELF object files, so the emulated Linux runs them."""
    path, out, tokens = tiny_llama(tmp_path / "tiny.gguf", n_layer=1), tmp_path / "logits.npy", [1, 5, 9, 200, 33, 7, 2]
    compiler = write_compiler(tmp_path / "compiler", "arm64-apple-macosx")
    script = "tests/arm64/logits.py", str(path), str(out), str(compiler), *map(str, tokens)
    emulate(arm64, "neoverse-n1", *script)
    np.testing.assert_allclose(np.load(out), naive.forward(naive.Model(open_gguf(path)), tokens), atol=0.02)
