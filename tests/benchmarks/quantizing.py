"""Whole processes that quantize a file, localinfer's and llama.cpp's in turn: seconds, and memory at its peak.

    python tests/benchmarks/quantizing.py /dev/shm                         # Llama-3.2-1B's shape in F16, 2.5 GB
    python tests/benchmarks/quantizing.py . Q4_K_M IQ4_XS --layers 4 --threads 1 --runs 5 --effort fast

The folder holds the source, which is made and removed, and what comes out. A folder in memory tells what computing
costs; on a disk, localinfer also waits until the file is there to stay, and llama.cpp does not. Processes start, import
and end, kernels are compiled before. The ratio is the median of those of neighbouring runs: below 1, localinfer took
less time. Needs the dependency groups `test` and `bench`; --peer is a Python that has llama-cpp-python.
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
from places import CHECKOUT, PYTHONPATH

sys.path[:0] = PYTHONPATH

import synthetic  # noqa: E402

from localinfer.quantizing.recipes import RECIPES  # noqa: E402

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
    """A whole process: wall-clock seconds, seconds of all its threads, MiB at its peak."""

    seconds: float
    processor: float
    peak: float


def timed(command: Sequence[str]) -> Run:
    """Run a command to its end. Its peak counts pages of mapped files that it looked at."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, cwd=CHECKOUT, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            sys.exit(said.read().decode(errors="replace"))
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def main() -> None:
    """Make the source, let both quantize it, print a line for each recipe."""
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
            print(contest(source, recipe, arguments), flush=True)


def contest(source: Path, recipe: str, arguments: argparse.Namespace) -> str:
    """A line of the table."""
    out, threads = source.with_name("out.gguf"), str(arguments.threads)
    ours = [sys.executable, "-m", "localinfer", "quantize", str(source), str(out), recipe, threads, "--force"]
    ours += ["--effort", arguments.effort]
    theirs = [arguments.peer, "-c", PEER, str(source), str(out), str(RECIPES[recipe].number), threads]
    timed(ours)  # compiles
    pairs = [(timed(ours), timed(theirs)) for _ in range(arguments.runs)]
    we, they = (Run(*map(statistics.median, zip(*runs, strict=True))) for runs in zip(*pairs, strict=True))
    ratio = statistics.median(one.seconds / other.seconds for one, other in pairs)
    return (
        f"| {recipe} | {we.seconds:.2f} s | {they.seconds:.2f} s | **{ratio:.2f}** "
        f"| {we.processor:.1f} s : {they.processor:.1f} s | {we.peak:.0f} MiB : {they.peak:.0f} MiB |"
    )


if __name__ == "__main__":
    main()
