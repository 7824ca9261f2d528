"""The command `localinfer batched-bench`: the tests of llama-batched-bench, with its output columns."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.flags import ModelArgument, with_options
from cli.measure.bench import ENGINE_OPTIONS, numbers
from cli.models.loading import find_or_fetch
from cli.terminal import screen
from localinfer.errors import UsageError
from localinfer.options import FLAGS, Layer, from_environment, merge

if TYPE_CHECKING:
    from localinfer.evaluation.batched_benchmark import BatchedResult, BatchedTest

HEADINGS = ("PP", "TG", "B", "N_KV", "T_PP s", "S_PP t/s", "T_TG s", "S_TG t/s", "T s", "S t/s")
WIDTHS = (6, 6, 4, 6, 8, 8, 8, 8, 8, 8)
SIZES = ("ctx_size", "threads", "batch_size", "ubatch_size", "cache_type_k", "cache_type_v")
FORMATS = ("md", "jsonl")


@dataclass(frozen=True, kw_only=True)
class BatchedTestOptions:
    """The tests. Each combination of the lists is one test."""

    n_prompt: Annotated[str, typer.Option("-npp", metavar="N,...", help="Prompt tokens of a sequence.")] = "128"
    n_gen: Annotated[str, typer.Option("-ntg", metavar="N,...", help="Generated tokens of a sequence.")] = "128"
    n_parallel: Annotated[str, typer.Option("-npl", metavar="N,...", help="Number of sequences.")] = "1,2,4,8"
    is_shared: Annotated[bool, typer.Option("-pps", help="All sequences share one prompt.")] = False

    def tests(self, n_kv_max: int) -> "list[BatchedTest]":
        """Return the tests, except those with more than `n_kv_max` tokens in the KV cache (0: no limit).

        Raises UsageError if an option is invalid or there is nothing to measure.
        """
        from localinfer.evaluation.batched_benchmark import BatchedTest

        tests = [
            BatchedTest(n_prompt, n_gen, n_parallel, self.is_shared)
            for n_prompt in numbers("-npp", self.n_prompt)
            for n_gen in numbers("-ntg", self.n_gen)
            for n_parallel in numbers("-npl", self.n_parallel, high=int(FLAGS["parallel"].maximum))
        ]
        if any(0 in (test.n_prompt, test.n_parallel) for test in tests):
            raise UsageError("-npp, -npl: must be above 0")
        fitting = [test for test in tests if not n_kv_max or test.n_kv <= n_kv_max]
        if not fitting:
            raise UsageError(f"--ctx-size: no test fits in {n_kv_max} tokens")
        return fitting


@with_options(names=(*SIZES, *ENGINE_OPTIONS))
def batched_bench_command(
    model: ModelArgument,
    given: Layer,
    choice: BatchedTestOptions,
    output: Annotated[
        str, typer.Option("--output-format", metavar="|".join(FORMATS), help="Output format.")
    ] = FORMATS[0],
) -> None:
    """Benchmark decoding of several sequences in one batch.

    The arguments and columns are those of llama-batched-bench: PP prompt tokens and TG generated tokens of each of B
    sequences, tokens in the KV cache, seconds and tokens per second of both phases, and of both together. Tests with
    more tokens than --ctx-size are left out.

    \b
    Examples:
      localinfer batched-bench smollm2 -npp 128 -ntg 32 -npl 1,2,4,8
      localinfer batched-bench smollm2 -c 16384 -npp 128,512 -ntg 128 -npl 1,8,32 -pps --output-format jsonl
    """
    from localinfer.evaluation.batched_benchmark import benchmark_batched

    if output not in FORMATS:
        raise UsageError(f"--output-format: must be {' or '.join(FORMATS)}, not {output}")
    options, status = merge(given, from_environment(os.environ)), screen.Status()
    tests = choice.tests(options.ctx_size)
    path = find_or_fetch(model, status)
    if output == "md":
        screen.write(table_line(HEADINGS) + f"|{'|'.join('-' * (width + 1) + ':' for width in WIDTHS)}|\n")
    try:
        for result in benchmark_batched(path, tests, options, status.show, status):
            status.erase()
            screen.write(table_line(cells(result)) if output == "md" else json.dumps(as_object(result)) + "\n")
    finally:
        status.erase()


def cells(result: "BatchedResult") -> list[str]:
    found = as_object(result)
    counts = [str(found[name]) for name in ("pp", "tg", "pl", "n_kv")]
    names = ("t_pp", "speed_pp", "t_tg", "speed_tg", "t", "speed")
    return counts + [f"{found[name]:.{3 if name.startswith('t') else 2}f}" for name in names]


def as_object(result: "BatchedResult") -> dict[str, float]:
    """Return a result with the field names of llama-batched-bench."""
    test, seconds = result.test, result.prompt_seconds + result.gen_seconds
    return {
        "is_pp_shared": int(test.is_shared),
        "n_threads": result.threads,
        "pp": test.n_prompt,
        "tg": test.n_gen,
        "pl": test.n_parallel,
        "n_kv": test.n_kv,
        "t_pp": result.prompt_seconds,
        "speed_pp": test.prompt_tokens / result.prompt_seconds,
        "t_tg": result.gen_seconds,
        "speed_tg": test.gen_tokens / result.gen_seconds,
        "t": seconds,
        "speed": test.n_kv / seconds,
    }


def table_line(texts: Iterable[str]) -> str:
    padded = (f"{text:>{width}}" for text, width in zip(texts, WIDTHS, strict=True))
    return f"| {' | '.join(padded)} |\n"
