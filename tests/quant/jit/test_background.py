"""Kernels that are compiled in the background: the needed ones come first, and nothing is left behind."""

import os
import subprocess
import sys
from pathlib import Path

from locations import CHECKOUT

from quant.jit import loader
from quant.jit.background import load_in_order
from quant.jit.kernel import Kernel
from quant.matmul.product_arguments import PRODUCT_PARAMETERS

FIRST = Kernel("localinfer.kernels.residual", "gather_rows", ("tokens", "x", "numbers", "n", "y"))
LATER = Kernel("localinfer.kernels.residual", "add_bias", ("tokens", "bias", "n", "x"))
UNKNOWN = Kernel("localinfer.kernels.residual", "no_such_kernel", ("tokens",))

PROGRAM = """
import sys
from pathlib import Path
import psutil
from quant.jit import loader
from quant.jit.background import load_in_order
from quant.jit.kernel import Kernel
root, (first, later) = Path(sys.argv[1]), map(Kernel.from_json, sys.argv[2:])
reports = []
compilation, warnings = load_in_order([first], [later], root, lambda *report: reports.append(report))
assert loader.addresses_of([first])[first] and not warnings
"""


def output_of(root: Path, later: Kernel, program: str) -> str:
    """Run PROGRAM and `program` in another process, and return the output. It must succeed."""
    command = [sys.executable, "-c", PROGRAM + program, str(root), FIRST.to_json(), later.to_json()]
    done = subprocess.run(command, cwd=CHECKOUT, env=os.environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_needed_kernels_are_loaded_before_the_others(tmp_path: Path) -> None:
    program = """
if compilation:  # unless both compilers ended at the same time
    compilation.wait()
    assert compilation.is_complete
assert loader.addresses_of([later])[later]
print([reports[0], reports[-1]] if reports else None, "numba" in sys.modules, psutil.Process().children())
"""
    assert output_of(tmp_path, LATER, program) == f"{[('compile', 0, 1), ('compile', 1, 1)]} False []"
    assert output_of(tmp_path, LATER, program + "assert compilation is None") == "None False []"


def test_close_terminates_the_compilers(tmp_path: Path) -> None:
    constants = (("format_module", "q4_k"), ("passes", 1))
    slow = Kernel("quant.matmul.rows", "matvec", PRODUCT_PARAMETERS, constants=constants)
    program = """
compilation.close()
print(compilation.is_complete, psutil.Process().children())
try:
    compilation.wait()
except RuntimeError as error:
    print(error)
"""
    output = output_of(tmp_path, slow, program).splitlines()
    assert output[0] == "False []"
    assert "the kernel compiler" in output[1]


def test_a_failed_compilation_is_reported(tmp_path: Path) -> None:
    """By `wait`, or at once if the compiler fails before the needed kernels are loaded."""
    command = [sys.executable, "-c", PROGRAM + "compilation.wait()", str(tmp_path), FIRST.to_json(), UNKNOWN.to_json()]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=False)
    error = done.stderr.splitlines()[-1].replace("kernels compiled in the background: ", "")  # `wait` says it
    assert error.startswith("RuntimeError: no_such_kernel: the kernel compiler failed: AttributeError")


def test_a_process_with_numba_compiles_everything_at_once(tmp_path: Path) -> None:
    import numba  # noqa: F401

    reports: list[tuple[str, int, int]] = []
    compilation, warnings = load_in_order([FIRST], [LATER], tmp_path, lambda *report: reports.append(report))
    assert compilation is None
    assert not warnings
    assert all(loader.addresses_of([FIRST, LATER]).values())
