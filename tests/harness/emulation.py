"""Runs Python for 64-bit ARM under emulation, as tests/arm64/setup.sh built it, and compares products of matrices."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import kernels
import numpy as np
from locations import CHECKOUT, PYTHONPATH, TESTS

# The features to compile for and the CPU to emulate, for the name of each CPU.
EMULATED = {
    "neoverse-n1": ("", "neoverse-n1"),
    "apple-m2": ("", "max,sve=off,sme=off"),
    "apple-m4": ("+sme2", "max,sve=off,sme512=on,sme_fa64=off"),
}
CROSS_COMPILER = [sys.executable, str(TESTS / "harness" / "cross_compiler.py")]


def environment(name: str, *python_path: str) -> dict[str, str]:
    """Return the environment variables that select an emulated CPU, and the module search path."""
    features, emulated = EMULATED[name]
    chosen = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "QEMU_CPU": emulated}
    chosen["OPENBLAS_CORETYPE"] = "ARMV8"  # numpy's OpenBLAS takes SME for SVE, which Apple's CPUs lack
    return os.environ | chosen | {"PYTHONPATH": os.pathsep.join(python_path)}


def run(command: Sequence[str | Path], environment: dict[str, str], text: str = "") -> str:
    """Run a command with `text` as its input, and return its output."""
    result = subprocess.run(
        command, env=environment, cwd=CHECKOUT, input=text, capture_output=True, text=True, timeout=1200
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
    return result.stdout


def emulate(python: Path, name: str, *arguments: str, text: str = "") -> str:
    """Run the interpreter for a CPU, and return its output."""
    return run([python, *arguments], environment(name, str(CHECKOUT)), text)


def write_compiler(path: Path, triple: str = "aarch64-unknown-linux-gnu") -> Path:
    """Write an executable that compiles kernels for arm64 natively, when an emulated process starts it."""
    native = ["env", "-u", "PYTHONHOME", "-u", "PYTHONNOUSERSITE", f"PYTHONPATH={os.pathsep.join(PYTHONPATH)}"]
    path.write_text(f"#!/bin/sh\nexec {shlex.join([*native, *CROSS_COMPILER, triple])}\n")
    path.chmod(0o700)
    return path


Products = Mapping[tuple[str, int], tuple[int, int, int]]  # (format, passes): rows, columns and tokens


def differing_products(python: Path, name: str, function: str, products: Products, folder: Path) -> list[str]:
    """Return which products, computed by the kernel `function` on an emulated CPU, have other bits than this CPU's
    matmul. Files are written to `folder`.
    """
    operands, expected, rng = {}, {}, np.random.default_rng(1)
    for (kind, passes), (n_out, n_in, tokens) in products.items():
        rows, x = kernels.random_rows(kind, n_out, n_in), rng.standard_normal((tokens, n_in)).astype(np.float32)
        operands |= {f"{kind}.{passes}.rows": rows, f"{kind}.{passes}.x": x}
        expected[f"{kind}.{passes}"] = kernels.matrix_product(kind, "matmul", x, rows, passes)
    source, out, compiler = folder / "operands.npz", folder / "products.npz", write_compiler(folder / "compiler")
    np.savez(source, **operands)
    script = [python, "tests/arm64/products.py", function, source, out, compiler]
    run(script, environment(name, *PYTHONPATH))
    computed = np.load(out)
    return [product for product, values in expected.items() if computed[product].tobytes() != values.tobytes()]
