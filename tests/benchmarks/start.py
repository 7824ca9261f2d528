"""What a user waits for, and what it takes: whole processes, from the command line to the first token.

    python tests/benchmarks/start.py smollm2 gemma3-270m               # names that were pulled, or paths

`generate -p Hello -n 1 --temp 0` with a warm JIT cache, and llama.cpp's Python bindings doing so in turn;
the same with an empty JIT cache; the peak memory of a longer run, and how much of it is neither the mapped
file nor the KV cache; `--help`. Medians. Needs the dependency group `bench`. Prints a Markdown table.

Modules come from Python's byte code, as they do wherever a program was installed, also where PYTHONDONTWRITEBYTECODE
would have those of this checkout compiled for each process anew, which takes a quarter of its time.
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

from localinfer.engine.program import memory_plan  # noqa: E402
from localinfer.files.gguf import open_gguf  # noqa: E402
from localinfer.models.registry import find  # noqa: E402
from localinfer.options import Options  # noqa: E402

MIB = 1 << 20
CTX_SIZE = 1280  # about what the long run fills: memory that is never touched does not count
LONG = [
    "-c",
    str(CTX_SIZE),
    "-p",
    "All work and no play makes Jack a dull boy. " * 110,
    "-n",
    "64",
    "--ignore-eos",
]
HELLO = ["-p", "Hello", "-n", "1", "--temp", "0"]
BINDINGS = """
import sys, llama_cpp
threads = int(sys.argv[2])
llama = llama_cpp.Llama(sys.argv[1], n_threads=threads, n_threads_batch=threads, verbose=False)
print(llama("Hello", max_tokens=1, temperature=0.0)["choices"][0]["text"])
"""


class Run(NamedTuple):
    """A process that has ended."""

    seconds: float
    peak: int  # bytes of memory, mapped files included


def run(command: Sequence[str], **environment: str) -> Run:
    """Run it to its end; RuntimeError with its last words where it fails."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors, env=own | environment
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"exit code {process.returncode}: {errors.read().decode()[-500:]}")
    return Run(seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def localinfer(*arguments: str, **environment: str) -> Run:
    """The command line of this checkout."""
    return run([sys.executable, "-m", "localinfer", *arguments], **environment)


def seconds(measure: Callable[[], Run], repetitions: int) -> str:
    """The median of some runs, after one that does not count."""
    measure()
    return f"{statistics.median(measure().seconds for _ in range(repetitions)):.2f} s"


def in_turn(first: Callable[[], Run], second: Callable[[], Run], repetitions: int) -> tuple[str, str]:
    """The medians of two that take turns, after one run of each that does not count."""
    first(), second()
    pairs = [(first().seconds, second().seconds) for _ in range(repetitions)]
    a, b = (statistics.median(each) for each in zip(*pairs, strict=True))
    return f"{a:.2f} s", f"{b:.2f} s"


def report(path: Path, threads: int, repetitions: int) -> None:
    """The rows of one model."""
    model, t = str(path), str(threads)
    generate = ["generate", model, "-t", t]
    with tempfile.TemporaryDirectory() as empty:
        cold = localinfer(*generate, *HELLO, LOCALINFER_CACHE_DIR=empty)
    ours, theirs = in_turn(
        lambda: localinfer(*generate, *HELLO),
        lambda: run([sys.executable, "-c", BINDINGS, model, t]),
        repetitions,
    )
    file, kv = path.stat().st_size, memory_plan(open_gguf(path), Options(ctx_size=CTX_SIZE))["kv"]
    peak = localinfer(*generate, *LONG).peak
    print(f"| {path.name} | `generate -p Hello -n 1`, whole process | {ours} | {theirs} |")
    print(f"| {path.name} | the same, first run ever (empty JIT cache) | {cold.seconds:.1f} s | |")
    print(f"| {path.name} | peak memory, a full context of 1,280 tokens | {peak / MIB:.0f} MiB | |")
    print(f"| {path.name} | ... beyond file and KV cache | {(peak - file - kv) / MIB:.0f} MiB | |")
    print(f"| {path.name} | peak memory, first run ever | {cold.peak / MIB:.0f} MiB | |", flush=True)


def main() -> None:
    """Parse the command line, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("-t", "--threads", type=int, default=2, help="default: 2")
    parser.add_argument("-r", "--repetitions", type=int, default=5, help="default: 5")
    arguments = parser.parse_args()
    print("| model | what | localinfer | llama.cpp bindings |")
    print("|---|---|---:|---:|")
    print(f"| | `localinfer --help` | {seconds(lambda: localinfer('--help'), arguments.repetitions)} | |")
    for model in arguments.models:
        report(find(model).resolve(), arguments.threads, arguments.repetitions)


if __name__ == "__main__":
    main()
