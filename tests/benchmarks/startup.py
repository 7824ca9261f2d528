"""Startup time and memory of whole processes, from the command line to the first token.

    python tests/benchmarks/startup.py smollm2 gemma3-270m               # downloaded models, or paths

Measures `generate -p Hello -n 1 --temp 0` with a warm JIT cache, interleaved with llama.cpp's Python bindings; the same
with an empty JIT cache; the peak memory of a longer run, and the part of it that is neither the mapped file nor the KV
cache; and `--help`. Prints a Markdown table of medians. Needs the dependency group `bench`.

Python uses cached byte code, as in an installed program, even if PYTHONDONTWRITEBYTECODE is set. Compiling the modules
of this checkout would take a quarter of the time of each process.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from localinfer.gguf.reader import open_gguf  # noqa: E402
from localinfer.hub.resolve import find  # noqa: E402
from localinfer.options import Options  # noqa: E402
from localinfer.runtime.requirements import memory_requirements  # noqa: E402

MIB = 1 << 20
CTX_SIZE = 1280  # about the tokens of the long run, because untouched memory does not count
LONG_RUN = [
    "-c",
    str(CTX_SIZE),
    "-p",
    "All work and no play makes Jack a dull boy. " * 110,
    "-n",
    "64",
    "--ignore-eos",
]
ONE_TOKEN = ["-p", "Hello", "-n", "1", "--temp", "0"]
BINDINGS = """
import sys, llama_cpp
threads = int(sys.argv[2])
llama = llama_cpp.Llama(sys.argv[1], n_threads=threads, n_threads_batch=threads, verbose=False)
print(llama("Hello", max_tokens=1, temperature=0.0)["choices"][0]["text"])
"""


class Run(NamedTuple):
    """The seconds and the peak memory of a process."""

    seconds: float
    peak: int  # peak memory in bytes, including mapped files


def run(command: Sequence[str], **environment: str) -> Run:
    """Run a command. Raises RuntimeError with the last line of its output if it fails."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        base = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors, env=base | environment)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"exit code {process.returncode}: {errors.read().decode()[-500:]}")
    return Run(seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def run_localinfer(*arguments: str, **environment: str) -> Run:
    """Run the command line of this checkout."""
    return run([sys.executable, "-m", "localinfer", *arguments], **environment)


def seconds(measure: Callable[[], Run], repetitions: int) -> str:
    """Return the median seconds of several runs after a warm-up run."""
    measure()
    return f"{statistics.median(measure().seconds for _ in range(repetitions)):.2f} s"


def interleave(first: Callable[[], Run], second: Callable[[], Run], repetitions: int) -> tuple[str, str]:
    """Return the median seconds of two interleaved commands after a warm-up run of each."""
    first(), second()
    pairs = [(first().seconds, second().seconds) for _ in range(repetitions)]
    a, b = (statistics.median(each) for each in zip(*pairs, strict=True))
    return f"{a:.2f} s", f"{b:.2f} s"


def report(path: Path, threads: int, repetitions: int) -> None:
    """Print the rows of one model."""
    model, t = str(path), str(threads)
    generate = ["generate", model, "-t", t]
    with tempfile.TemporaryDirectory() as empty:
        cold = run_localinfer(*generate, *ONE_TOKEN, LOCALINFER_CACHE_DIR=empty)
    ours, reference = interleave(
        lambda: run_localinfer(*generate, *ONE_TOKEN),
        lambda: run([sys.executable, "-c", BINDINGS, model, t]),
        repetitions,
    )
    file, kv = path.stat().st_size, memory_requirements(open_gguf(path), Options(ctx_size=CTX_SIZE))["kv"]
    peak = run_localinfer(*generate, *LONG_RUN).peak
    print(f"| {path.name} | `generate -p Hello -n 1`, whole process | {ours} | {reference} |")
    print(f"| {path.name} | the same, first run ever (empty JIT cache) | {cold.seconds:.1f} s | |")
    print(f"| {path.name} | peak memory, a full context of 1,280 tokens | {peak / MIB:.0f} MiB | |")
    print(f"| {path.name} | ... beyond file and KV cache | {(peak - file - kv) / MIB:.0f} MiB | |")
    print(f"| {path.name} | peak memory, first run ever | {cold.peak / MIB:.0f} MiB | |", flush=True)


def main() -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("-t", "--threads", type=int, default=2, help="default: 2")
    parser.add_argument("-r", "--repetitions", type=int, default=5, help="default: 5")
    arguments = parser.parse_args()
    print("| model | what | localinfer | llama.cpp bindings |")
    print("|---|---|---:|---:|")
    print(f"| | `localinfer --help` | {seconds(lambda: run_localinfer('--help'), arguments.repetitions)} | |")
    for model in arguments.models:
        report(find(model).resolve(), arguments.threads, arguments.repetitions)


if __name__ == "__main__":
    main()
