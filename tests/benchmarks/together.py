"""What it is worth to compute sequences together.

    python tests/benchmarks/together.py answers MODEL [COUNT...]   # tokens a second in sum, beside one answer alone
    python tests/benchmarks/together.py rival MODEL PYTHON [COUNT...]  # beside llama.cpp, which this Python has
    python tests/benchmarks/together.py prefix MODEL [COUNT]       # prompts that begin with the same 1,000 tokens

Turns are taken: alone, together, alone, ... All answers are compared: they must be the same.
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
from localinfer.model import Model
from localinfer.models import registry

TOKENS, ROUNDS, USUAL = 64, 5, ("8", "16")
COMMON, OWN, TOLD = 1000, 16, 8
AT_A_TIME = 16  # prompts with a common prefix


def answer(model: Model, prompt: Sequence[int], tokens: int) -> list[int]:
    options = {"n_predict": tokens, "temp": 0.0, "ignore_eos": True, "spec_type": "none"}
    return [piece.id for piece in model.generate(prompt, **options)]


def all_of(model: Model, prompts: Sequence[Sequence[int]], lanes: int, tokens: int) -> tuple[float, list[list[int]]]:
    """Seconds, and the answers to all prompts, so many at a time."""
    lines = [list(range(number, len(prompts), lanes)) for number in range(lanes)]
    answers: list[list[int]] = [[] for _ in prompts]

    def line(number: int) -> None:
        for which in lines[number]:
            answers[which] = answer(model.beside(number), prompts[which], tokens)

    began = time.perf_counter()
    with ThreadPoolExecutor(lanes) as threads:
        list(threads.map(line, range(lanes)))
    return time.perf_counter() - began, answers


def answers(name: str, *counts: str) -> None:
    for count in map(int, counts or USUAL):
        measured(name, count, [])


def rival(name: str, python: str, *counts: str) -> None:
    for count in map(int, counts or USUAL):
        with Peer(python, name, count) as peer:
            measured(name, count, [peer.rate])


class Peer:
    """`together_peer` in a process of its own."""

    def __init__(self, python: str, name: str, count: int) -> None:
        command = [python, Path(__file__).with_name("together_peer.py"), registry.find(name), str(count), str(TOKENS)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        assert self._answer() == "ready"

    def rate(self, count: int) -> float:
        """Tokens a second in sum."""
        assert self._process.stdin
        self._process.stdin.write(f"{count}\n")
        return count * TOKENS / float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate("")


def measured(name: str, count: int, rivals: Sequence[Callable[[int], float]]) -> None:
    """One answer, many, and the rivals' many, in turns."""
    with load(name, ctx_size=512, parallel=count) as model:
        prompts = [model.tokenize(f"{number} is a number that") for number in range(count)]
        expected = [answer(model.beside(0), prompt, TOKENS) for prompt in prompts]

        def rate(some: int) -> float:
            seconds, found = all_of(model, prompts[:some], some, TOKENS)
            assert found == expected[:some]
            return some * TOKENS / seconds

        turns = [lambda: rate(1), lambda: rate(count), *(partial(each, count) for each in rivals)]
        rounds = [[turn() for turn in turns] for _ in range(ROUNDS + 1)][1:]  # the first one compiles, and reads
    alone, together, *theirs = (statistics.median(rates) for rates in zip(*rounds, strict=True))
    gain = statistics.median(each[1] / each[0] for each in rounds)
    print(f"{count:3} answers: {together:7.1f} t/s in sum, {gain:.2f} times one ({alone:.1f} t/s)", flush=True)
    for place, rate_of_theirs in enumerate(theirs):
        ratio = statistics.median(each[1] / each[2 + place] for each in rounds)
        print(f"    llama.cpp: {rate_of_theirs:7.1f} t/s; localinfer {ratio:.2f} times as fast", flush=True)


def prefix(name: str, count: str = "64") -> None:
    with load(name, ctx_size=2048) as model:
        ids = model.tokenize("It was a bright cold day in April, and the clocks were striking thirteen. " * 100)
        prompts = [[*ids[:COMMON], *ids[number : number + OWN], number + 100] for number in range(int(count))]
        answer(model, ids[5:50], 1)
        began, one_by_one = time.perf_counter(), []
        for prompt in prompts:
            model.engine.reset()
            one_by_one.append(answer(model, prompt, TOLD))
        alone = time.perf_counter() - began
        print(f"{count} prompts, one after the other, each as a whole: {alone:.1f} s", flush=True)
    with load(name, ctx_size=2048, parallel=AT_A_TIME) as model:
        answer(model.beside(0), ids[5:50], 1)
        seconds, found = all_of(model, prompts, AT_A_TIME, TOLD)
        assert found == one_by_one
        print(f"{AT_A_TIME} at a time: {seconds:.1f} s, {alone / seconds:.1f} times as fast")


if __name__ == "__main__":
    command, name, *rest = sys.argv[1:]
    {"answers": answers, "rival": rival, "prefix": prefix}[command](name, *rest)
