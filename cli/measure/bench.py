"""The command `localinfer bench`: the tests of llama-bench, with its output columns."""

import dataclasses
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.flags import OVERRIDES, parse_options, with_options
from cli.measure.bench_results import TABLE_COLUMNS, WRITERS, as_narrow_markdown, expert_lines, peak_line
from cli.measure.plot import plot, plot_path
from cli.models.loading import default_model, find_or_fetch
from cli.terminal import screen
from localinfer.errors import UsageError
from localinfer.options import FLAGS, Layer, Options, from_environment, merge

if TYPE_CHECKING:
    from localinfer.evaluation.benchmark import BenchmarkResult, BenchmarkTest


ENGINE_OPTIONS = ("threads_batch", "precision", "mmap", "memory", "tune", "check_tensors", *OVERRIDES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestOptions:
    """The tests. Each combination of the lists is one test."""

    n_prompt: Annotated[
        str, typer.Option("-p", "--n-prompt", metavar="N,...", help="Prompt tokens (0: skip the test).")
    ] = "512"
    n_gen: Annotated[
        str, typer.Option("-n", "--n-gen", metavar="N,...", help="Generated tokens (0: skip the test).")
    ] = "128"
    pg: Annotated[
        list[str] | None,
        typer.Option("-pg", metavar="N,N", help="Prompt and generated tokens in one test; may be repeated."),
    ] = None
    depths: Annotated[
        str, typer.Option("-d", "--n-depth", metavar="N,...", help="Context tokens before the test.")
    ] = "0"
    thread_counts: Annotated[
        str, typer.Option("-t", "--threads", metavar="N,...", help="Number of threads (0: physical cores).")
    ] = "0"
    repetitions: Annotated[
        int, typer.Option("-r", "--repetitions", metavar="N", help="Repetitions of each test.")
    ] = 5

    def tests(self) -> "list[BenchmarkTest]":
        """Return the tests. Raises UsageError if an option is invalid or there is nothing to measure."""
        from localinfer.evaluation.benchmark import BenchmarkTest

        if self.repetitions < 1:
            raise UsageError("--repetitions: must be at least 1")
        sizes = [(tokens, 0) for tokens in numbers("--n-prompt", self.n_prompt)]
        sizes += [(0, tokens) for tokens in numbers("--n-gen", self.n_gen)]
        sizes += [number_pair("-pg", text) for text in self.pg or []]
        tests = [
            BenchmarkTest(*size, depth, count)
            for count in numbers("--threads", self.thread_counts, high=int(FLAGS["threads"].maximum))
            for depth in numbers("--n-depth", self.depths)
            for size in sizes
            if any(size)
        ]
        if not tests:
            raise UsageError("--n-prompt, --n-gen, -pg: nothing to measure")
        return tests


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListedOptions:
    """Options of the engine that may have several values. Each combination runs all tests."""

    batch_size: Annotated[
        str | None, typer.Option("-b", "--batch-size", metavar="N,...", help="Logical maximum batch size.")
    ] = None
    ubatch_size: Annotated[
        str | None, typer.Option("-ub", "--ubatch-size", metavar="N,...", help="Physical maximum batch size.")
    ] = None
    cache_type_k: Annotated[
        str | None, typer.Option("-ctk", "--cache-type-k", metavar="TYPE,...", help="Data type of the KV cache for K.")
    ] = None
    cache_type_v: Annotated[
        str | None, typer.Option("-ctv", "--cache-type-v", metavar="TYPE,...", help="Data type of the KV cache for V.")
    ] = None

    def layers(self) -> list[Layer]:
        """Return the combinations. Raises UsageError for an invalid value."""
        listed = {name: text.split(",") for name, text in dataclasses.asdict(self).items() if text is not None}
        return [parse_options(dict(zip(listed, values, strict=True))) for values in itertools.product(*listed.values())]


@with_options(names=ENGINE_OPTIONS)
def bench_command(
    given: Layer,
    *,
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Paths of GGUF files, or model names. [default: the default model]"),
    ] = None,
    choice: TestOptions,
    listed: ListedOptions,
    output: Annotated[str, typer.Option("-o", "--output", metavar="|".join(WRITERS), help="Output format.")] = "md",
    plot_file: Annotated[
        str | None,
        typer.Option("--plot", metavar="FILE", help="Plot t/s over context depth to a .png or .svg file."),
    ] = None,
) -> None:
    """Benchmark prompt processing (pp) and text generation (tg).

    Results are in tokens per second. The last two columns are the multiply-accumulates per second of a prompt, or the
    bytes per second of generation, and their fraction of the measured peak of this machine.

    \b
    Examples:
      localinfer bench smollm2 -p 512 -n 128 -t 1,2 -d 0,4096 -r 5 -o md
      localinfer bench -m smollm2 -m gemma3-270m -p 0 -n 0 -pg 512,128 -o csv
      localinfer bench smollm2 -p 0 -n 32 -d 0,1024,2048,4096 --plot depth.svg
      localinfer bench mixture.gguf -p 0 -n 32 -r 1 --memory 8G
    """
    if output not in WRITERS:
        raise UsageError(f"--output: must be {' or '.join(WRITERS)}, not {output}")
    tests = choice.tests()
    path = plot_path(plot_file) if plot_file is not None else None
    results = [
        result
        for model in models or [default_model()]
        for layer in listed.layers()
        for result in run_tests(
            model, tests, merge({**given, **layer}, from_environment(os.environ)), choice.repetitions
        )
    ]
    narrow = output == "md" and 0 < screen.output_columns() < TABLE_COLUMNS
    screen.write((as_narrow_markdown if narrow else WRITERS[output])(results))
    for roofline in dict.fromkeys(result.roofline for result in results):
        screen.note_dim(peak_line(roofline))
    for line in expert_lines(results):
        screen.note_dim(line)
    if path:
        plot(path, results)


def numbers(option: str, text: str, high: int = 1 << 20) -> list[int]:
    """Parse a list such as 1,2,4. Raises UsageError with the name of the option if it is invalid."""
    values = [int(item) if re.fullmatch(r"\d{1,9}", item) else -1 for item in text.split(",")]
    if not all(0 <= value <= high for value in values):
        raise UsageError(f"{option}: must be whole numbers from 0 to {high}, such as 1,2; not {text}")
    return values


def number_pair(option: str, text: str) -> tuple[int, int]:
    """Parse two numbers such as 512,128."""
    found = numbers(option, text)
    if len(found) != 2:
        raise UsageError(f"{option}: must be two numbers, such as 512,128; not {text}")
    return found[0], found[1]


def run_tests(
    model: str, tests: "Sequence[BenchmarkTest]", options: Options, repetitions: int
) -> "Iterator[BenchmarkResult]":
    """Run the tests of a model and yield their results, with a status line meanwhile."""
    from localinfer.evaluation.benchmark import benchmark

    status = screen.Status()
    path = find_or_fetch(model, status)
    try:
        yield from benchmark(path, tests, options, repetitions, status.show, status)
    finally:
        status.erase()
