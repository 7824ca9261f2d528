"""What it is worth to compute sequences together.

    python tests/benchmarks/together.py answers MODEL [COUNT...]   # tokens a second in sum, beside one answer alone
    python tests/benchmarks/together.py prefix MODEL [COUNT]       # prompts that begin with the same 1,000 tokens

Turns are taken: alone, together, alone, ... All answers are compared: they must be the same.
"""

import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from localinfer import load
from localinfer.model import Model

TOKENS, ROUNDS = 64, 5
COMMON, OWN, TOLD = 1000, 16, 8
AT_A_TIME = 16  # prompts with a common prefix


def answer(model: Model, prompt: Sequence[int], tokens: int) -> list[int]:
    return [piece.id for piece in model.generate(prompt, n_predict=tokens, temp=0.0, ignore_eos=True)]


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
    for count in map(int, counts or ("8", "16")):
        with load(name, ctx_size=2048, parallel=count) as model:
            prompts = [model.tokenize(f"{number} is a number that") for number in range(count)]
            rates: list[list[float]] = [[], []]
            expected = [answer(model.beside(0), prompt, TOKENS) for prompt in prompts]
            for number in range(ROUNDS + 1):
                for which, some in enumerate((prompts[:1], prompts)):
                    seconds, found = all_of(model, some, len(some), TOKENS)
                    assert found == expected[: len(some)]
                    if number:  # the first round compiles, and reads the file
                        rates[which].append(len(some) * TOKENS / seconds)
            alone, together = map(statistics.median, rates)
            print(f"{count:3} answers: {together:7.1f} t/s in sum, {together / alone:.2f} times one ({alone:.1f} t/s)")


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
    {"answers": answers, "prefix": prefix}[command](name, *rest)
