"""Compares the speed of localinfer and llama.cpp on the same file, in the manner of llama-bench.

    python tests/benchmarks/speed.py smollm2 gemma3-270m                # downloaded models, or paths
    python tests/benchmarks/speed.py model.gguf -p 512 -n 128 -t 1,2 -d 0,4096 -r 5

Both engines are loaded once, in separate processes, and run interleaved, one sleeping while the other runs: A B A B,
after a warm-up run of each. The workloads are those of llama-bench: pp512 evaluates 512 tokens in one call, tg128
evaluates 128 tokens one by one, after `-d` tokens that are not timed. Tokens are random, logits are computed after the
last token of each call, and there is no tokenizing and no sampling. llama.cpp uses its defaults (flash attention:
auto). The table has medians, and the median ratio of adjacent runs with its smallest and largest value.
performance_targets.py has the targets of this program. Needs the dependency group `bench`.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2])]

from interleaved import EngineProcess, Result, Setup, Workload, run_interleaved  # noqa: E402

from localinfer.hub.resolve import find  # noqa: E402


def results(path: Path, arguments: argparse.Namespace) -> Iterator[tuple[Workload, int, Result]]:
    """Run all workloads on one model."""
    tests = [
        Workload(n, at_once, depth)
        for depth in arguments.depth
        for n, at_once in [(arguments.p, True), (arguments.n, False)]
        if n
    ]
    n_ctx = max(test.n_ctx for test in tests)
    for threads in arguments.threads:
        a, b = (Setup(engine, path, threads, n_ctx) for engine in ("localinfer", "llama.cpp"))
        with EngineProcess(a) as ours, EngineProcess(b) as reference:
            for test in tests:
                run_interleaved(ours, reference, test, 1)
                yield test, threads, run_interleaved(ours, reference, test, arguments.repetitions)


def row(path: Path, test: Workload, threads: int, result: Result) -> str:
    """Return a row of the table."""
    ours, reference = statistics.median(result.ours), statistics.median(result.theirs)
    spread = f"{min(result.ratios):.2f} to {max(result.ratios):.2f}"
    return (
        f"| {path.name} | {test.name} | {threads} | {ours:.1f} | {reference:.1f} | **{result.ratio:.2f}** | {spread} |"
    )


def numbers(text: str) -> list[int]:
    """Parse a list of integers, such as "1,2"."""
    return [int(field) for field in text.split(",")]


def main() -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("-p", type=int, default=512, help="prompt tokens; 0 skips the test (default: 512)")
    parser.add_argument("-n", type=int, default=128, help="tokens to generate; 0 skips the test (default: 128)")
    parser.add_argument("-t", "--threads", type=numbers, default=[1, 2], help="default: 1,2")
    parser.add_argument("-d", "--depth", type=numbers, default=[0], help="tokens of context (default: 0)")
    parser.add_argument("-r", "--repetitions", type=int, default=5, help="of each engine (default: 5)")
    arguments = parser.parse_args()
    print("| model | test | threads | localinfer t/s | llama.cpp t/s | ratio | of single runs |")
    print("|---|---|---:|---:|---:|---:|---|")
    for model in arguments.models:
        path = find(model)
        for result in results(path, arguments):
            print(row(path, *result), flush=True)


if __name__ == "__main__":
    main()
