"""Benchmark of batched decoding: the tests of llama-batched-bench.

    B sequences of PP prompt tokens each, then TG tokens of all sequences, one of each in a batch

With a shared prompt, it is evaluated once, and the sequences share its KV cache pages. The tokens are random.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from localinfer.evaluation.benchmark import random_tokens
from localinfer.gguf.overrides import open_overridden
from localinfer.options import Options
from localinfer.runtime import sequence
from localinfer.runtime.batch import Ids, Segment
from localinfer.runtime.engine import Engine
from quant.jit.loader import Progress

WARMUP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class BatchedTest:
    """A test: `n_parallel` sequences with `n_prompt` tokens of prompt and `n_gen` of decode."""

    n_prompt: int
    n_gen: int
    n_parallel: int
    is_shared: bool  # the prompt

    @property
    def prompt_tokens(self) -> int:
        """The number of prompt tokens that are evaluated."""
        return self.n_prompt * (1 if self.is_shared else self.n_parallel)

    @property
    def gen_tokens(self) -> int:
        return self.n_gen * self.n_parallel

    @property
    def n_kv(self) -> int:
        """The number of tokens in the KV cache."""
        return self.prompt_tokens + self.gen_tokens


@dataclass(frozen=True, slots=True)
class BatchedResult:
    """The seconds of prefill and decode of a test."""

    test: BatchedTest
    threads: int
    prompt_seconds: float
    gen_seconds: float


def benchmark_batched(
    path: Path,
    tests: Sequence[BatchedTest],
    options: Options,
    on_activity: Callable[[str], None],
    progress: Progress | None = None,
) -> Iterator[BatchedResult]:
    """Run the tests of a model file and yield their results. Raises what `open_overridden` and `Engine.load` raise."""
    n_parallel = max(test.n_parallel for test in tests)
    options = replace(
        options,
        ctx_size=max(WARMUP_TOKENS, *(test.n_prompt + test.n_gen for test in tests)),
        parallel=n_parallel,
        ubatch_size=max(options.ubatch_size, n_parallel),  # a step of all sequences is one batch
    )
    on_activity(f"loading {path.name}")
    engine = Engine.load(open_overridden(path, options), options, progress)
    try:
        run_test(engine, BatchedTest(WARMUP_TOKENS - 1, 1, 1, is_shared=False))
        for test in tests:
            on_activity(f"PP {test.n_prompt}, TG {test.n_gen}, B {test.n_parallel}")
            yield run_test(engine, test)
    finally:
        engine.close()


def run_test(engine: Engine, test: BatchedTest) -> BatchedResult:
    """Return the result of one run of a test."""
    runner = engine.runner
    sequences = [runner.new_sequence() for _ in range(1 if test.is_shared else test.n_parallel)]
    try:
        begin = time.perf_counter()
        evaluate_prompts(engine, sequences, test.n_prompt)
        middle = time.perf_counter()
        sequences += [sequences[0].fork() for _ in range(test.n_parallel - len(sequences))]
        rows = np.arange(test.n_parallel, dtype=np.int32)
        for _ in range(test.n_gen):
            runner.evaluate_segments([Segment(each, random_ids(engine, 1)) for each in sequences], rows)
        end = time.perf_counter()
    finally:
        for each in sequences:
            each.reset()
    return BatchedResult(test, engine.compiled_graph.threads_for(1), middle - begin, end - middle)


def evaluate_prompts(engine: Engine, sequences: Sequence[sequence.Sequence], n_prompt: int) -> None:
    """Evaluate a prompt in each sequence, in batches that are as large as possible, and the logits of its last token.

    A batch may end within a prompt, and holds the prompts of several sequences if they are short.
    """
    space, segments, rows = engine.max_batch, list[Segment](), list[int]()
    for each in sequences:
        done = 0
        while done < n_prompt:
            count = min(space, n_prompt - done)
            segments.append(Segment(each, random_ids(engine, count)))
            done, space = done + count, space - count
            if done == n_prompt:
                rows.append(engine.max_batch - space - 1)
            if not space or (each is sequences[-1] and done == n_prompt):
                engine.runner.evaluate_segments(segments, np.array(rows, np.int32))
                space, segments, rows = engine.max_batch, [], []


def random_ids(engine: Engine, count: int) -> Ids:
    return np.array(random_tokens(engine, count), np.int32)
