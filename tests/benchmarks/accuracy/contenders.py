"""Who takes part in quality.py: ways to make a quantized file of a source.

    CONTENDERS["localinfer+imatrix"].make(Task(source, out, "Q4_K_M", imatrix=imatrix))

Each raises RuntimeError with one line where it cannot. localinfer is its own command line in a process of its own,
llama.cpp the function that llama-quantize calls.
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
from places import CHECKOUT, PYTHONPATH

sys.path[:0] = PYTHONPATH

from peer import C  # noqa: E402
from requantize import as_entries, file_type  # noqa: E402

from localinfer.files.imatrix_file import read_imatrix  # noqa: E402

PURE = "pure-"  # in front of a recipe: all matrices in one type


@dataclass(frozen=True, slots=True)
class Task:
    """A file to be made. The importance matrix was measured on the text, for those who want to know."""

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


class Contender(NamedTuple):
    """`calibrated`: whether it has a look at a text."""

    make: Callable[[Task], None]
    calibrated: bool


def localinfer(*arguments: str | Path) -> None:
    """Run a command."""
    command = [sys.executable, "-m", "localinfer", *map(str, arguments)]
    done = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError([f"exit code {done.returncode}", *done.stderr.splitlines()][-1])


def quantize(task: Task, *more: str | Path) -> None:
    """`localinfer quantize`, with more words."""
    pure = ("--pure",) if task.pure else ()
    localinfer("quantize", task.source, task.out, task.type, str(task.threads), "--force", *pure, *more)


def plain(task: Task) -> None:
    quantize(task)


def weighted(task: Task) -> None:
    quantize(task, "--imatrix", required(task.imatrix))


def with_covariances(task: Task) -> None:
    """Nobody measures covariances beforehand: the text is read while the model is quantized."""
    quantize(task, "--calibrate", required(task.text))


def plain_llama_cpp(task: Task) -> None:
    by_llama_cpp(task, None)


def weighted_llama_cpp(task: Task) -> None:
    by_llama_cpp(task, required(task.imatrix))


def by_llama_cpp(task: Task, imatrix: Path | None) -> None:
    """Have llama.cpp quantize, with the same importance matrix if there is one."""
    params = C.llama_model_quantize_default_params()
    params.ftype, params.pure, params.nthread = file_type(task.type), task.pure, task.threads
    entries = read_imatrix(imatrix).entries.items() if imatrix else ()
    means = {name: np.ascontiguousarray(entry.means.reshape(-1)) for name, entry in entries}
    listed = as_entries(means)
    if imatrix:
        params.imatrix = listed
    if C.llama_model_quantize(str(task.source).encode(), str(task.out).encode(), ctypes.byref(params)):
        raise RuntimeError(f"llama.cpp cannot quantize to {task.recipe}")


def required(path: Path | None) -> Path:
    assert path is not None
    return path


CONTENDERS = {  # rivals first
    "llama.cpp": Contender(plain_llama_cpp, calibrated=False),
    "localinfer": Contender(plain, calibrated=False),
    "llama.cpp+imatrix": Contender(weighted_llama_cpp, calibrated=True),
    "localinfer+imatrix": Contender(weighted, calibrated=True),
    "max+covariances": Contender(with_covariances, calibrated=True),
}
