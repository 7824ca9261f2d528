"""Kernels for other operating systems: ELF object files with the calling convention of the system."""

import os
import platform
import re
import subprocess
import sys

import pytest
from locations import CHECKOUT, PYTHONPATH

from localinfer.kernels.signatures import ADD_NORM
from quant.jit.compiler import compile_kernel
from quant.jit.kernel import make_kernel

ON_X86 = pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="needs x86-64 Linux")
KERNEL = make_kernel(ADD_NORM.small_batch, ADD_NORM.parameters, ADD_NORM.floats, {})

COMPILE = """
import sys
from cross_target import set_triple
set_triple(sys.argv[1])
from quant.jit.compiler import compile_kernel
from quant.jit.kernel import Kernel
sys.stdout.buffer.write(compile_kernel(Kernel.from_json(sys.argv[2])))
"""


def environment(**variables: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(PYTHONPATH)} | variables


@ON_X86
def test_intel_mac_has_the_kernels_of_linux() -> None:
    command = [sys.executable, "-c", COMPILE, "x86_64-apple-macosx", KERNEL.to_json()]
    done = subprocess.run(command, env=environment(), capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr[-1000:]
    assert done.stdout == compile_kernel(KERNEL)


FILES = ["tests/quant/matmul/test_kernels.py", "tests/localinfer/runtime/test_thread_pool.py"]
TESTS = "Q8_0 and fast and integers or every_chunk and 3 or stop_flag and 0"  # integers are exact; threads yield


@ON_X86
def test_kernels_for_windows_run() -> None:
    """They are called with the calling convention of Windows, and yield a core with its function."""
    variables = {"FOREIGN_TRIPLE": "x86_64-pc-windows-msvc-elf", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-v", "-x", "-p", "foreign_kernels", *FILES, "-k", TESTS]
    done = subprocess.run(
        command, env=environment(**variables), cwd=CHECKOUT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    for file in FILES:
        assert re.search(f"^{file}::.* PASSED", done.stdout, re.MULTILINE)
    assert re.search(r"^threads yielded [1-9]\d* times$", done.stdout, re.MULTILINE)
