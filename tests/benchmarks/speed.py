"""How fast are localinfer and llama.cpp, side by side on the same file?

    python tests/benchmarks/speed.py smollm2 gemma3-270m                # names that were pulled, or paths
    python tests/benchmarks/speed.py model.gguf -p 512 -n 128 -t 1,2 -d 0,4096 -r 5

Both engines are loaded once, in processes of their own, and run in turn, one sleeping while the other runs: A B A B,
after a run of each that does not count. A test is llama-bench's: pp512 evaluates 512 tokens in one call, tg128
evaluates 128 tokens one by one, after `-d` tokens that are not counted; random tokens, logits after the last one of
each call, no tokenizing and no sampling. llama.cpp has its own defaults (flash attention: auto). The table gives
medians, and the median of the ratios of neighbouring runs with the smallest and the largest. Needs the dependency
group `bench`. See bars.py for the tests that this program is held to.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2])]

from contest import Contestant, Result, Setup, Test, take_turns  # noqa: E402

from localinfer.models.registry import find  # noqa: E402


def results(path: Path, arguments: argparse.Namespace) -> Iterator[tuple[Test, int, Result]]:
    """Run all tests on one model."""
    tests = [
        Test(n, at_once, depth)
        for depth in arguments.depth
        for n, at_once in [(arguments.p, True), (arguments.n, False)]
        if n
    ]
    n_ctx = max(test.n_ctx for test in tests)
    for threads in arguments.threads:
        a, b = (Setup(engine, path, threads, n_ctx) for engine in ("localinfer", "llama.cpp"))
        with Contestant(a) as ours, Contestant(b) as theirs:
            for test in tests:
                take_turns(ours, theirs, test, 1)
                yield test, threads, take_turns(ours, theirs, test, arguments.repetitions)


def row(path: Path, test: Test, threads: int, result: Result) -> str:
    """One line of the table."""
    ours, theirs = statistics.median(result.ours), statistics.median(result.theirs)
    spread = f"{min(result.ratios):.2f} to {max(result.ratios):.2f}"
    return f"| {path.name} | {test.name} | {threads} | {ours:.1f} | {theirs:.1f} | **{result.ratio:.2f}** | {spread} |"


def numbers(text: str) -> list[int]:
    """1,2 -> [1, 2]"""
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Parse the command line, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("-p", type=int, default=512, help="tokens of a prompt; 0: no such test (default: 512)")
    parser.add_argument("-n", type=int, default=128, help="tokens to generate; 0: no such test (default: 128)")
    parser.add_argument("-t", "--threads", type=numbers, default=[1, 2], help="default: 1,2")
    parser.add_argument("-d", "--depth", type=numbers, default=[0], help="tokens before (default: 0)")
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
