"""Tokens a second, side by side with llama.cpp: same file, same tokens, same number of threads, one machine.

    python tests/benchmarks/speed.py smollm2 gemma3-270m               # names that were pulled, or paths
    python tests/benchmarks/speed.py model.gguf -p 512 -n 128 -t 1,2 -d 0,4096 -r 5

Both engines are loaded once and run in turn, one sleeping while the other runs: A B A B, after a run of
each that does not count. A test is llama-bench's: pp512 evaluates 512 tokens in one call, tg128 evaluates
128 tokens one by one, after `-d` tokens that are not counted; random tokens, logits after the last one of
each call, no tokenizing and no sampling. llama.cpp has its own defaults (flash attention: auto). The table
gives medians, and the median of the ratios of neighbouring runs with the smallest and the largest. Needs
the dependency group `bench`.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

sys.path[:0] = [str(Path(__file__).parents[2])]

from peer import Llama  # noqa: E402

from localinfer.engine import Engine  # noqa: E402
from localinfer.gguf import open_gguf  # noqa: E402
from localinfer.options import Options  # noqa: E402
from localinfer.registry import find  # noqa: E402

BATCH = 512
PAUSE = 0.1  # seconds in which threads of the run before stop spinning


class Evaluator(Protocol):
    """What both engines can do."""

    def evaluate(self, tokens: Sequence[int]) -> NDArray[np.float32]: ...

    def rewind(self, n: int) -> int: ...


class Test(NamedTuple):
    """So many tokens at once, or one by one, after `depth` others."""

    tokens: int
    at_once: bool
    depth: int

    @property
    def name(self) -> str:
        """As llama-bench prints it."""
        return f"{'pp' if self.at_once else 'tg'}{self.tokens}" + (f" @ d{self.depth}" if self.depth else "")

    def rate(self, engine: Evaluator, tokens: Sequence[int]) -> float:
        """Tokens a second of one run."""
        before, timed = tokens[: self.depth], tokens[self.depth : self.depth + self.tokens]
        engine.rewind(0)
        if before:
            engine.evaluate(before)
        time.sleep(PAUSE)
        start = time.perf_counter()
        for part in [timed] if self.at_once else [[token] for token in timed]:
            engine.evaluate(part)
        return len(timed) / (time.perf_counter() - start)


class Result(NamedTuple):
    """Tokens a second of runs that took turns."""

    ours: list[float]
    theirs: list[float]

    @property
    def ratios(self) -> list[float]:
        """How many times as fast, run by run."""
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]


def take_turns(test: Test, ours: Evaluator, theirs: Evaluator, tokens: Sequence[int], repetitions: int) -> Result:
    """A B A B ..., of which the first A and B do not count."""
    pairs = [(test.rate(ours, tokens), test.rate(theirs, tokens)) for _ in range(repetitions + 1)]
    return Result([a for a, _ in pairs[1:]], [b for _, b in pairs[1:]])


def results(path: Path, arguments: argparse.Namespace) -> Iterator[tuple[Test, int, Result]]:
    """Run all tests on one model."""
    tests = [
        Test(n, at_once, depth)
        for depth in arguments.depth
        for n, at_once in [(arguments.p, True), (arguments.n, False)]
        if n
    ]
    n_ctx = max(test.depth + test.tokens for test in tests)
    for threads in arguments.threads:
        options = Options(threads=threads, ctx_size=n_ctx, batch_size=BATCH)
        engine = Engine(open_gguf(path), options)
        with Llama(path, threads=threads, n_ctx=n_ctx, n_batch=BATCH) as llama:
            tokens = np.random.default_rng(0).integers(0, llama.n_vocab, n_ctx).tolist()
            for test in tests:
                yield test, threads, take_turns(test, engine, llama, tokens, arguments.repetitions)
        engine.close()


def row(path: Path, test: Test, threads: int, result: Result) -> str:
    """One line of the table."""
    ours, theirs, ratio = (statistics.median(each) for each in (*result, result.ratios))
    spread = f"{min(result.ratios):.2f} to {max(result.ratios):.2f}"
    return f"| {path.name} | {test.name} | {threads} | {ours:.1f} | {theirs:.1f} | **{ratio:.2f}** | {spread} |"


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
