"""Throughput of continuous batching and prefix caching.

    python tests/benchmarks/batched_decoding.py answers MODEL [COUNT...]       # total t/s, relative to one sequence
    python tests/benchmarks/batched_decoding.py rival MODEL PYTHON [COUNT...]  # relative to llama.cpp in this Python
    python tests/benchmarks/batched_decoding.py prefix MODEL [COUNT]           # prompts with a prefix of 1,000 tokens

The runs are interleaved: one sequence, several, one, ... The generated tokens must be equal in all of them.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Self

from localinfer import load
from localinfer.hub import resolve
from localinfer.model import Model

TOKENS, ROUNDS, DEFAULT_COUNTS = 64, 5, ("8", "16")
COMMON, PROMPT_TOKENS, ANSWER_TOKENS = 1000, 16, 8
N_PARALLEL = 16  # concurrent prompts with a common prefix


def generate(model: Model, prompt: Sequence[int], tokens: int) -> list[int]:
    options = {"n_predict": tokens, "temp": 0.0, "ignore_eos": True, "spec_type": "none"}
    return [piece.id for piece in model.stream(prompt, **options)]


def generate_all(
    model: Model, prompts: Sequence[Sequence[int]], n_parallel: int, tokens: int
) -> tuple[float, list[list[int]]]:
    """Generate from all prompts, `n_parallel` at a time. Returns the seconds and the tokens of each."""
    lines = [list(range(number, len(prompts), n_parallel)) for number in range(n_parallel)]
    answers: list[list[int]] = [[] for _ in prompts]

    def line(number: int) -> None:
        for which in lines[number]:
            answers[which] = generate(model.concurrent(number), prompts[which], tokens)

    start = time.perf_counter()
    with ThreadPoolExecutor(n_parallel) as threads:
        list(threads.map(line, range(n_parallel)))
    return time.perf_counter() - start, answers


def benchmark_batched(name: str, *counts: str) -> None:
    for count in map(int, counts or DEFAULT_COUNTS):
        measure(name, count, [])


def benchmark_against_llama_cpp(name: str, python: str, *counts: str) -> None:
    for count in map(int, counts or DEFAULT_COUNTS):
        with LlamaCppProcess(python, name, count) as peer:
            measure(name, count, [peer.rate])


class LlamaCppProcess:
    """llama_cpp_batched.py in a subprocess."""

    def __init__(self, python: str, name: str, count: int) -> None:
        program = Path(__file__).with_name("llama_cpp_batched.py")
        command = [python, program, resolve.find(name), str(count), str(TOKENS)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        assert self._read_result() == "ready"

    def rate(self, count: int) -> float:
        """Return the total tokens per second of `count` sequences."""
        assert self._process.stdin
        self._process.stdin.write(f"{count}\n")
        return count * TOKENS / float(self._read_result())

    def _read_result(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate("")


def measure(name: str, count: int, baselines: Sequence[Callable[[int], float]]) -> None:
    """Measure one sequence, `count` sequences, and the baselines, interleaved."""
    with load(name, ctx_size=512, parallel=count) as model:
        prompts = [model.tokenize(f"{number} is a number that") for number in range(count)]
        expected = [generate(model.concurrent(0), prompt, TOKENS) for prompt in prompts]

        def rate(some: int) -> float:
            seconds, actual = generate_all(model, prompts[:some], some, TOKENS)
            assert actual == expected[:some]
            return some * TOKENS / seconds

        runs = [lambda: rate(1), lambda: rate(count), *(partial(each, count) for each in baselines)]
        rounds = [[run() for run in runs] for _ in range(ROUNDS + 1)][1:]  # the first round warms up
    alone, batched, *reference = (statistics.median(rates) for rates in zip(*rounds, strict=True))
    gain = statistics.median(each[1] / each[0] for each in rounds)
    print(f"{count:3} sequences: {batched:7.1f} t/s in total, {gain:.2f} times one ({alone:.1f} t/s)", flush=True)
    for position, baseline_rate in enumerate(reference):
        ratio = statistics.median(each[1] / each[2 + position] for each in rounds)
        print(f"    llama.cpp: {baseline_rate:7.1f} t/s; localinfer {ratio:.2f} times as fast", flush=True)


def benchmark_prefix(name: str, count: str = "64") -> None:
    with load(name, ctx_size=2048) as model:
        ids = model.tokenize("It was a bright cold day in April, and the clocks were striking thirteen. " * 100)
        prompts = [[*ids[:COMMON], *ids[number : number + PROMPT_TOKENS], number + 100] for number in range(int(count))]
        generate(model, ids[5:50], 1)
        start, one_by_one = time.perf_counter(), []
        for prompt in prompts:
            model.engine.reset()
            one_by_one.append(generate(model, prompt, ANSWER_TOKENS))
        alone = time.perf_counter() - start
        print(f"{count} prompts, sequentially, without prefix caching: {alone:.1f} s", flush=True)
    with load(name, ctx_size=2048, parallel=N_PARALLEL) as model:
        generate(model.concurrent(0), ids[5:50], 1)
        seconds, actual = generate_all(model, prompts, N_PARALLEL, ANSWER_TOKENS)
        assert actual == one_by_one
        print(f"{N_PARALLEL} in parallel: {seconds:.1f} s, {alone / seconds:.1f} times as fast")


if __name__ == "__main__":
    command, name, *parameters = sys.argv[1:]
    {"answers": benchmark_batched, "rival": benchmark_against_llama_cpp, "prefix": benchmark_prefix}[command](
        name, *parameters
    )
