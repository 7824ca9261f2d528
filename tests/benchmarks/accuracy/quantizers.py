"""The quantizers that quality.py compares: functions that write a quantized file of a source model.

    QUANTIZERS["localinfer+imatrix"].make(Task(source, out, "Q4_K_M", imatrix=imatrix))

Each raises RuntimeError with a one-line message if it fails. localinfer runs as a command in a subprocess, llama.cpp
through the function that llama-quantize calls.
"""

import ctypes
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parents[2]))
from locations import CHECKOUT, PYTHONPATH

sys.path[:0] = PYTHONPATH

from localinfer.gguf.imatrix_file import read_imatrix  # noqa: E402

PURE = "pure-"  # prefix of a recipe: all matrices have the same type


@dataclass(frozen=True, slots=True)
class Task:
    """A file to write. The importance matrix was measured on the calibration text."""

    source: Path
    out: Path
    recipe: str
    imatrix: Path | None = None
    text: Path | None = None
    threads: int = 2

    @property
    def pure(self) -> bool:
        return self.recipe.startswith(PURE)

    @property
    def type(self) -> str:
        return self.recipe.removeprefix(PURE)


class Quantizer(NamedTuple):
    """A quantizer; `uses_calibration` is whether it uses calibration data."""

    make: Callable[[Task], None]
    uses_calibration: bool


def run_localinfer(*arguments: str | Path) -> None:
    """Run a command."""
    command = [sys.executable, "-m", "localinfer", *map(str, arguments)]
    done = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError([f"exit code {done.returncode}", *done.stderr.splitlines()][-1])


def quantize(task: Task, *more: str | Path) -> None:
    """Run `localinfer quantize` with additional arguments."""
    pure = ("--pure",) if task.pure else ()
    run_localinfer("quantize", task.source, task.out, task.type, str(task.threads), "--force", *pure, *more)


def without_imatrix(task: Task) -> None:
    quantize(task)


def with_imatrix(task: Task) -> None:
    quantize(task, "--imatrix", require_imatrix(task.imatrix))


def with_covariances(task: Task) -> None:
    """Quantize with the covariances of the inputs, which localinfer measures on the text while it quantizes."""
    quantize(task, "--calibrate", require_imatrix(task.text))


def with_scale_pairs(task: Task) -> None:
    quantize(task, "--imatrix", require_imatrix(task.imatrix), "--scale-pairs")


def with_covariances_and_scale_pairs(task: Task) -> None:
    quantize(task, "--calibrate", require_imatrix(task.text), "--scale-pairs")


def llama_cpp_without_imatrix(task: Task) -> None:
    quantize_with_llama_cpp(task, None)


def llama_cpp_with_imatrix(task: Task) -> None:
    quantize_with_llama_cpp(task, require_imatrix(task.imatrix))


def quantize_with_llama_cpp(task: Task, imatrix: Path | None) -> None:
    """Quantize with llama.cpp, with the same importance matrix if there is one."""
    from llama_cpp_engine import C  # here, because scripts that only run localinfer do not need llama.cpp
    from requantize import file_type, to_llama_cpp_entries

    params = C.llama_model_quantize_default_params()
    params.ftype, params.pure, params.nthread = file_type(task.type), task.pure, task.threads
    entries = read_imatrix(imatrix).entries.items() if imatrix else ()
    means = {name: np.ascontiguousarray(entry.means.reshape(-1)) for name, entry in entries}
    listed = to_llama_cpp_entries(means)
    if imatrix:
        params.imatrix = listed
    if C.llama_model_quantize(str(task.source).encode(), str(task.out).encode(), ctypes.byref(params)):
        raise RuntimeError(f"llama.cpp cannot quantize to {task.recipe}")


def require_imatrix(path: Path | None) -> Path:
    assert path is not None
    return path


QUANTIZERS = {  # baselines first
    "llama.cpp": Quantizer(llama_cpp_without_imatrix, uses_calibration=False),
    "localinfer": Quantizer(without_imatrix, uses_calibration=False),
    "llama.cpp+imatrix": Quantizer(llama_cpp_with_imatrix, uses_calibration=True),
    "localinfer+imatrix": Quantizer(with_imatrix, uses_calibration=True),
    "localinfer+scale-pairs": Quantizer(with_scale_pairs, uses_calibration=True),
    "max+covariances": Quantizer(with_covariances, uses_calibration=True),
    "max+scale-pairs": Quantizer(with_covariances_and_scale_pairs, uses_calibration=True),
}
