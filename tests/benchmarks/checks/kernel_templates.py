"""Compares the machine code of kernels compiled from templates with that of each kernel compiled by numba alone.

    python tests/benchmarks/checks/kernel_templates.py --record kernels.jsonl tests/quant tests/localinfer -n auto
    python tests/benchmarks/checks/kernel_templates.py kernels.jsonl                    # all kernels of the file
    python tests/benchmarks/checks/kernel_templates.py kernels.jsonl -n 50 --seed 2     # 50 of them, another order
    NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES= python tests/benchmarks/checks/kernel_templates.py kernels.jsonl

`--record` passes the arguments behind the file to pytest, and adds every kernel that its tests load to the file.

The comparison compiles each kernel in a process of its own without templates, and all kernels in one process with
templates, in two random orders. The object files must be equal to the byte: code that depends on the kernels compiled
before is found. All processes are forks of one that has only imported numba, because the order of some of numba's IR
depends on Python's random seed for hashes. Any difference is a failure.
"""

import argparse
import gc
import hashlib
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import pytest  # noqa: E402

from quant.jit import loader, templates  # noqa: E402
from quant.jit.compiler import compile_kernel  # noqa: E402
from quant.jit.kernel import Kernel  # noqa: E402
from quant.jit.kernel_cache import KernelCache  # noqa: E402

RECORD_VARIABLE = "KERNEL_TEMPLATES_RECORD"  # the file of --record, also for the processes of pytest-xdist
Digests = dict[str, str]


def pytest_configure() -> None:
    """Record the kernels that tests load. This module is a pytest plugin during `--record`."""
    load_cached = loader.load_cached

    def load_recorded(kernels: Sequence[Kernel], files: KernelCache) -> list[Kernel]:
        with Path(os.environ[RECORD_VARIABLE]).open("a", encoding="utf-8") as file:
            file.write("".join(f"{kernel.to_json()}\n" for kernel in kernels))
        return load_cached(kernels, files)

    loader.load_cached = load_recorded


def record(file: str, arguments: Sequence[str]) -> int:
    """Run pytest and add the kernels of its tests to a file."""
    os.environ[RECORD_VARIABLE] = str(Path(file).resolve())
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    return int(pytest.main(["-p", Path(__file__).stem, *arguments]))


def digests(kernels: Iterable[str]) -> Digests:
    """Compile kernels in this process, and return a digest of each object file."""
    return {each: hashlib.sha256(compile_kernel(Kernel.from_json(each))).hexdigest() for each in kernels}


def without_templates(kernel: str) -> Digests:
    """Compile a kernel with numba alone, in this process, which has not compiled before."""
    templates.TemplateCompiler._compile_core = templates.FunctionCompiler._compile_core  # type: ignore[method-assign]
    return digests([kernel])


def in_fork(work: Callable[[], Digests]) -> tuple[Digests, float]:
    """Return the result of `work` in a fork of this process, empty if it fails, and its CPU seconds."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            before = time.process_time()
            result = work()
            with os.fdopen(writing, "w", encoding="utf-8") as pipe:
                json.dump((result, time.process_time() - before), pipe)
        except Exception:
            traceback.print_exc()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    found, seconds = json.loads(text or "[{}, 0]")
    return found, seconds


def compare(kernels: Sequence[str], seed: int) -> int:
    """Print the result of the comparison. Return the number of kernels whose code differs.

    Kernels that numba alone cannot compile are listed and left out: some need another CPU, and a test needs one that
    lacks an argument.
    """
    gc.freeze()
    order, expected, seconds = random.Random(seed), Digests(), [0.0]
    for kernel in kernels:
        found, spent = in_fork(lambda kernel=kernel: without_templates(kernel))  # type: ignore[misc]
        expected |= found
        seconds[0] += spent
        if not found:
            print(f"left out: {kernel}")
    different: set[str] = set()
    for _ in range(2):
        shuffled = order.sample(list(expected), len(expected))
        found, spent = in_fork(lambda shuffled=shuffled: digests(shuffled))  # type: ignore[misc]
        different |= {kernel for kernel in expected if found.get(kernel) != expected[kernel]}
        seconds.append(spent)
    for kernel in sorted(different):
        print(f"differs: {kernel}")
    print(f"{len(expected) - len(different)} of {len(expected)} kernels have the same code")
    print(f"CPU seconds: {seconds[0]:.0f} alone, {seconds[1]:.0f} and {seconds[2]:.0f} together from templates")
    return len(different)


def main() -> int:
    """Record or compare kernels."""
    if sys.argv[1:2] == ["--record"]:
        return record(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="kernels as JSON, one in each line")
    parser.add_argument("-n", type=int, help="the number of kernels to compare; all if not given")
    parser.add_argument("--seed", type=int, default=1, help="selects the kernels and their order")
    arguments = parser.parse_args()
    kernels = sorted(set(arguments.file.read_text(encoding="utf-8").splitlines()))
    if arguments.n is not None:
        kernels = random.Random(arguments.seed).sample(kernels, min(arguments.n, len(kernels)))
    return min(compare(kernels, arguments.seed), 1)


if __name__ == "__main__":
    sys.exit(main())
