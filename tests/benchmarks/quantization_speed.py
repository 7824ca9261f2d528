"""Whole processes that quantize a file, localinfer and llama.cpp interleaved: seconds and peak memory.

    python tests/benchmarks/quantization_speed.py /dev/shm                         # Llama-3.2-1B's shape in F16, 2.5 GB
    python tests/benchmarks/quantization_speed.py . Q4_K_M IQ4_XS --layers 4 --threads 1 --runs 5 --effort fast

The folder holds the source, which is created and removed, and the output. A folder in memory shows the cost of
computing. On a disk, localinfer also waits until the file is flushed, which llama.cpp does not. The times include
starting the process and importing modules, but not compiling kernels. The ratio is the median over adjacent runs; below
1, localinfer took less time. --peer is a Python with llama-cpp-python. Needs the dependency groups `test` and `bench`.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1]))
from locations import CHECKOUT, PYTHONPATH

sys.path[:0] = PYTHONPATH

import synthetic  # noqa: E402

from localinfer.quantization.recipes import RECIPES  # noqa: E402

PEER = """
import ctypes, sys
import llama_cpp

@llama_cpp.llama_log_callback
def silent(level, text, user_data):
    pass

llama_cpp.llama_log_set(silent, ctypes.c_void_p())
source, out, number, threads = sys.argv[1:]
params = llama_cpp.llama_model_quantize_default_params()
params.ftype, params.nthread = int(number), int(threads)
sys.exit(llama_cpp.llama_model_quantize(source.encode(), out.encode(), params))
"""


class Run(NamedTuple):
    """The resources of a process: wall-clock seconds, CPU seconds of all threads, peak memory in MiB."""

    seconds: float
    processor: float
    peak: float


def run_timed(command: Sequence[str]) -> Run:
    """Run a command. Its peak memory includes the pages of mapped files that it accessed."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=CHECKOUT, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            sys.exit(output.read().decode(errors="replace"))
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def main() -> None:
    """Write the source, quantize it with both programs, and print a row for each recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("recipes", nargs="*", choices=[*RECIPES, []], metavar="TYPE")
    parser.add_argument("--layers", type=int, default=synthetic.LLAMA_1B.n_layer)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--effort", default="normal")
    parser.add_argument("--peer", default=sys.executable, metavar="PYTHON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        source = synthetic.write(Path(folder) / "source.gguf", "F16", n_layer=arguments.layers)
        print(
            "| F16 to | localinfer | llama.cpp | ratio | processor time | peak memory |\n|---|---:|---:|---:|---:|---:|"
        )
        for recipe in arguments.recipes or ("Q4_K_M", "Q8_0", "Q4_0", "Q6_K", "IQ4_XS"):
            print(benchmark_recipe(source, recipe, arguments), flush=True)


def benchmark_recipe(source: Path, recipe: str, arguments: argparse.Namespace) -> str:
    """Return a row of the table."""
    out, threads = source.with_name("out.gguf"), str(arguments.threads)
    ours = [sys.executable, "-m", "localinfer", "quantize", str(source), str(out), recipe, threads, "--force"]
    ours += ["--effort", arguments.effort]
    reference = [arguments.peer, "-c", PEER, str(source), str(out), str(RECIPES[recipe].number), threads]
    run_timed(ours)  # compiles
    pairs = [(run_timed(ours), run_timed(reference)) for _ in range(arguments.runs)]
    we, they = (Run(*map(statistics.median, zip(*runs, strict=True))) for runs in zip(*pairs, strict=True))
    ratio = statistics.median(one.seconds / other.seconds for one, other in pairs)
    return (
        f"| {recipe} | {we.seconds:.2f} s | {they.seconds:.2f} s | **{ratio:.2f}** "
        f"| {we.processor:.1f} s : {they.processor:.1f} s | {we.peak:.0f} MiB : {they.peak:.0f} MiB |"
    )


if __name__ == "__main__":
    main()
