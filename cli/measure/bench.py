"""The command `localinfer bench`: the tests of llama-bench, with its output columns.

    pp512          prefill of 512 tokens                   tg128        decode of 128 tokens
    pp512 @ d4096  the same after 4096 tokens of context   pp512+tg128  prefill, then decode

The benchmark measures the engine alone, with random tokens, without tokenization and sampling. It also reports the
memory bandwidth or arithmetic throughput and its share of the measured peak (`localinfer.evaluation.roofline`).
"""

import dataclasses
import os
import random
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cli import screen
from cli.flags import with_options
from cli.loading import find_or_fetch
from cli.measure.bench_results import WRITERS, BenchModel, Result, Test, peak_line
from cli.measure.plot import plot, plot_path
from localinfer.errors import UsageError
from localinfer.graph.cost import Cost
from localinfer.options import FLAGS, Layer, Options, from_environment, merge

if TYPE_CHECKING:
    from localinfer.gguf.reader import GGUF
    from localinfer.runtime.engine import Engine


ENGINE_OPTIONS = (
    "threads_batch", "batch_size", "ubatch_size", "precision", "cache_type_k", "cache_type_v", "mmap"
)  # fmt: skip


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

    def tests(self) -> list[Test]:
        """Return the tests. Raises UsageError if an option is invalid or there is nothing to measure."""
        if self.repetitions < 1:
            raise UsageError("--repetitions: must be at least 1")
        sizes = [(tokens, 0) for tokens in numbers("--n-prompt", self.n_prompt)]
        sizes += [(0, tokens) for tokens in numbers("--n-gen", self.n_gen)]
        sizes += [number_pair("-pg", text) for text in self.pg or []]
        tests = [
            Test(*size, depth, count)
            for count in numbers("--threads", self.thread_counts, high=int(FLAGS["threads"].maximum))
            for depth in numbers("--n-depth", self.depths)
            for size in sizes
            if any(size)
        ]
        if not tests:
            raise UsageError("--n-prompt, --n-gen, -pg: nothing to measure")
        return tests


@with_options(names=ENGINE_OPTIONS)
def bench_command(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Paths of GGUF files, or model names.")],
    given: Layer,
    choice: TestOptions,
    output: Annotated[str, typer.Option("-o", "--output", metavar="|".join(WRITERS), help="Output format.")] = "md",
    plot_file: Annotated[
        str | None,
        typer.Option("--plot", metavar="FILE", help="Plot t/s over context depth to a .png or .svg file."),
    ] = None,
) -> None:
    """Benchmark prompt processing (pp) and text generation (tg).

    Results are in tokens per second. The last two columns are the multiply-accumulates per second of a prompt, or the
    bytes per second of generation, and their share of the measured peak of this machine.

    \b
    Examples:
      localinfer bench smollm2 -p 512 -n 128 -t 1,2 -d 0,4096 -r 5 -o md
      localinfer bench -m smollm2 -m gemma3-270m -p 0 -n 0 -pg 512,128 -o csv
      localinfer bench smollm2 -p 0 -n 32 -d 0,1024,2048,4096 --plot depth.svg
    """
    if output not in WRITERS:
        raise UsageError(f"--output: must be {' or '.join(WRITERS)}, not {output}")
    tests = choice.tests()
    path = plot_path(plot_file) if plot_file is not None else None
    options = merge(given, from_environment(os.environ))
    results = [result for model in models for result in measure(model, tests, options, choice.repetitions)]
    screen.write(WRITERS[output](results))
    for roofline in dict.fromkeys(result.roofline for result in results):
        screen.note_dim(peak_line(roofline))
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


def measure(model: str, tests: Sequence[Test], given: Options, repetitions: int) -> list[Result]:
    """Run the tests of a model, with one engine per number of threads."""
    status = screen.Status()
    path = find_or_fetch(model, status)
    with status.busy(f"loading {screen.one_line(model)}"):
        from localinfer.evaluation.roofline import measure
        from localinfer.gguf.reader import open_gguf
        from localinfer.runtime import weight_loading
        from localinfer.runtime.engine import Engine

        n_ctx = max(test.depth + test.tokens for test in tests)
        f = weight_loading.load_weights(open_gguf(path), dataclasses.replace(given, ctx_size=n_ctx), status)
    results: list[Result] = []
    for count in dict.fromkeys(test.threads for test in tests):
        options = dataclasses.replace(given, ctx_size=n_ctx, threads=count)
        with status.busy(f"loading {screen.one_line(model)}"):
            engine = Engine.load(f, options, status)
        subject = describe_model(f, dataclasses.replace(given, precision=engine.compiled_graph.precision))
        try:
            for test in (each for each in tests if each.threads == count):
                at_once = test.n_prompt or 1
                known = dataclasses.replace(test, threads=engine.compiled_graph.threads_for(at_once))
                with status.busy("measuring the peak of this machine"):
                    roofline = measure(known.threads)
                seconds = run(engine, known, repetitions, status)
                results.append(Result(subject, known, seconds, amount(engine, known), roofline))
        finally:
            engine.close()
    return results


def run(engine: "Engine", test: Test, repetitions: int, status: screen.Status) -> list[float]:
    """Return the seconds of each repetition, after a warmup run."""
    seconds = []
    for repetition in range(-1, repetitions):
        fill_cache(engine, test.depth)
        status.show(f"{test.name}, {test.threads} threads: {repetition + 1} of {repetitions}")
        tokens = random_tokens(engine, test.tokens)
        begin = time.perf_counter()
        if test.n_prompt:
            engine.evaluate(tokens[: test.n_prompt])
        for token in tokens[test.n_prompt :]:
            engine.evaluate([token])
        if repetition >= 0:
            seconds.append(time.perf_counter() - begin)
    status.erase()
    return seconds


def amount(engine: "Engine", test: Test) -> Cost:
    """Return the cost of one repetition of a test."""
    from localinfer.evaluation.roofline import evaluation_cost

    prefill = evaluation_cost(engine.graph, test.n_prompt, test.depth)
    n_past = test.depth + test.n_prompt
    return sum((evaluation_cost(engine.graph, 1, n_past + token) for token in range(test.n_gen)), prefill)


def fill_cache(engine: "Engine", depth: int) -> None:
    """Fill the KV cache to `depth` tokens. A sliding window may have evicted earlier tokens."""
    n_cached = engine.rewind(depth)
    if n_cached < depth:
        engine.evaluate(random_tokens(engine, depth - n_cached))


def random_tokens(engine: "Engine", count: int) -> list[int]:
    return [random.randrange(engine.n_vocab) for _ in range(count)]


def describe_model(f: "GGUF", options: Options) -> BenchModel:
    from quant.jit.cpu import target

    kinds: dict[str, int] = {}
    for tensor in f.tensors.values():
        kinds[tensor.type_name] = kinds.get(tensor.type_name, 0) + tensor.nbytes
    name = f"{f.get('general.architecture', str, '?')} {f.get('general.size_label', str, '')}".strip()
    return BenchModel(
        file=str(f.path),
        model=screen.one_line(f"{name} {max(kinds, key=lambda kind: kinds[kind])}"),
        size=sum(kinds.values()),
        params=sum(tensor.n_elements for tensor in f.tensors.values()),
        backend=f"CPU {target().isa}",
        options=options,
    )
