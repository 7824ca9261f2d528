"""`localinfer bench`: llama-bench's tests, in llama-bench's columns.

    pp512          512 tokens of a prompt, at once       tg128   128 tokens, one after the other
    pp512 @ d4096  the same, when 4096 tokens are there before

Measures the engine alone: random tokens go in, logits come out. Tokenizing and sampling are not in it.
"""

import dataclasses
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from cli import screen
from cli.loading import fetched
from localinfer.errors import UsageError
from localinfer.options import FLAGS

if TYPE_CHECKING:
    from localinfer.engine import Engine
    from localinfer.gguf import GGUF


COLUMNS = [("<", 24), (">", 10), (">", 9), ("<", 14), (">", 7), (">", 14), (">", 18)]  # side, width


@dataclass(frozen=True, slots=True)
class Test:
    """`tokens` of a prompt or of an answer, behind `depth` others, on `threads` threads."""

    kind: str  # "pp" or "tg"
    tokens: int
    depth: int
    threads: int

    @property
    def name(self) -> str:
        return f"{self.kind}{self.tokens}" + (f" @ d{self.depth}" if self.depth else "")


@dataclass(frozen=True, slots=True)
class Result:
    """What a test measured."""

    test: Test
    seconds: list[float]  # of each repetition

    @property
    def rates(self) -> list[float]:
        """Tokens a second."""
        return [self.test.tokens / each for each in self.seconds]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.rates)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.rates) if len(self.rates) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Subject:
    """The model's columns of the table."""

    model: str
    size: int  # bytes of all tensors
    params: int
    backend: str


def bench_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Path of a GGUF file, or a name.")],
    prompts: Annotated[
        str, typer.Option("-p", "--n-prompt", metavar="N,...", help="Tokens of a prompt (0: no such test).")
    ] = "512",
    answers: Annotated[
        str, typer.Option("-n", "--n-gen", metavar="N,...", help="Tokens of an answer (0: no such test).")
    ] = "128",
    depths: Annotated[
        str, typer.Option("-d", "--n-depth", metavar="N,...", help="Tokens that are there before.")
    ] = "0",
    threads: Annotated[
        str, typer.Option("-t", "--threads", metavar="N,...", help="Threads (0: the physical cores).")
    ] = "0",
    batch_size: Annotated[
        int, typer.Option("-b", "--batch-size", metavar="N", help="Tokens that are computed at once.")
    ] = 512,
    repetitions: Annotated[int, typer.Option("-r", "--repetitions", metavar="N", help="Runs of a test.")] = 5,
    output: Annotated[str, typer.Option("-o", "--output", metavar="md|json", help="Table or JSON.")] = "md",
) -> None:
    """Measure prompt processing (pp) and text generation (tg) in tokens a second.

    \b
      localinfer bench smollm2 -p 512 -n 128 -t 1,2 -d 0,4096 -r 5 -o md
    """
    if output not in WRITERS:
        raise UsageError(f"--output: must be {' or '.join(WRITERS)}, not {output}")
    if repetitions < 1:
        raise UsageError("--repetitions: must be at least 1")
    sizes = [("pp", tokens) for tokens in numbers("--n-prompt", prompts)]
    sizes += [("tg", tokens) for tokens in numbers("--n-gen", answers)]
    tests = [
        Test(kind, tokens, depth, count)
        for count in numbers("--threads", threads, high=int(FLAGS["threads"].high))
        for depth in numbers("--n-depth", depths)
        for kind, tokens in sizes
        if tokens
    ]
    if not tests:
        raise UsageError("--n-prompt, --n-gen: nothing to measure")
    subject, results = measure(model, tests, batch_size, repetitions)
    screen.write(WRITERS[output](subject, results))


def numbers(option: str, text: str, high: int = 1 << 20) -> list[int]:
    """A list such as 1,2,4."""
    values = [int(part) if re.fullmatch(r"\d{1,9}", part) else -1 for part in text.split(",")]
    if not all(0 <= value <= high for value in values):
        raise UsageError(f"{option}: must be whole numbers from 0 to {high}, such as 1,2; not {text}")
    return values


def measure(
    model: str, tests: Sequence[Test], batch_size: int, repetitions: int
) -> tuple[Subject, list[Result]]:
    """Run the tests, with one engine for all that have the same number of threads."""
    status = screen.Status()
    path = fetched(model, status)
    with status.busy(f"loading {screen.one_line(model)}"):
        from localinfer.engine import Engine
        from localinfer.gguf import open_gguf
        from localinfer.options import Options

    f = open_gguf(path)
    n_ctx = max(test.depth + test.tokens for test in tests)
    results: list[Result] = []
    for count in dict.fromkeys(test.threads for test in tests):
        options = Options(ctx_size=n_ctx, threads=count, batch_size=batch_size).validated()
        with status.busy(f"loading {screen.one_line(model)}"):
            engine = Engine(f, options, status)
        try:
            for test in (each for each in tests if each.threads == count):
                known = dataclasses.replace(test, threads=engine.threads)
                results.append(run(engine, known, repetitions, status))
        finally:
            engine.close()
    return subject_of(f), results


def run(engine: "Engine", test: Test, repetitions: int, status: screen.Status) -> Result:
    """One run to warm up, then those that count."""
    seconds = []
    for repetition in range(-1, repetitions):
        fill(engine, test.depth)
        status.show(f"{test.name}, {test.threads} threads: {repetition + 1} of {repetitions}")
        tokens = random_tokens(engine, test.tokens)
        begin = time.perf_counter()
        if test.kind == "pp":
            engine.evaluate(tokens)
        else:
            for token in tokens:
                engine.evaluate([token])
        if repetition >= 0:
            seconds.append(time.perf_counter() - begin)
    status.erase()
    return Result(test, seconds)


def fill(engine: "Engine", depth: int) -> None:
    """Bring the cache to `depth` tokens; a sliding window may have lost what was there."""
    kept = engine.rewind(depth)
    if kept < depth:
        engine.evaluate(random_tokens(engine, depth - kept))


def random_tokens(engine: "Engine", count: int) -> list[int]:
    return [random.randrange(engine.n_vocab) for _ in range(count)]


def subject_of(f: "GGUF") -> Subject:
    from quant.cpu import target

    kinds: dict[str, int] = {}
    for tensor in f.tensors.values():
        kinds[tensor.type_name] = kinds.get(tensor.type_name, 0) + tensor.nbytes
    name = f"{f.get('general.architecture', str, '?')} {f.get('general.size_label', str, '')}".strip()
    return Subject(
        model=screen.one_line(f"{name} {max(kinds, key=lambda kind: kinds[kind])}"),
        size=sum(kinds.values()),
        params=sum(tensor.n_elements for tensor in f.tensors.values()),
        backend=f"CPU {target().isa}",
    )


def as_markdown(subject: Subject, results: Sequence[Result]) -> str:
    lines = [
        table_line("model", "size", "params", "backend", "threads", "test", "t/s"),
        "|" + "|".join("-" * (width + 1) + ("-" if side == "<" else ":") for side, width in COLUMNS) + "|\n",
    ]
    lines += [
        table_line(
            subject.model, screen.mib(subject.size), f"{subject.params / 1e6:.2f} M", subject.backend,
            str(result.test.threads), result.test.name, f"{result.mean:.2f} ± {result.deviation:.2f}",
        )
        for result in results
    ]  # fmt: skip
    return "".join(lines)


def table_line(*cells: str) -> str:
    padded = (f"{cell:{side}{width}}" for cell, (side, width) in zip(cells, COLUMNS, strict=True))
    return f"| {' | '.join(padded)} |\n"


def as_json(subject: Subject, results: Sequence[Result]) -> str:
    """One object a test, with llama-bench's names."""
    objects = [
        {
            "model_type": subject.model, "model_size": subject.size, "model_n_params": subject.params,
            "backend": subject.backend, "n_threads": result.test.threads, "test": result.test.name,
            "n_prompt": result.test.tokens if result.test.kind == "pp" else 0,
            "n_gen": result.test.tokens if result.test.kind == "tg" else 0,
            "n_depth": result.test.depth, "avg_ts": result.mean, "stddev_ts": result.deviation,
            "samples_ns": [round(each * 1e9) for each in result.seconds], "samples_ts": result.rates,
        }
        for result in results
    ]  # fmt: skip
    return json.dumps(objects, indent=2) + "\n"


WRITERS: dict[str, Callable[[Subject, Sequence[Result]], str]] = {"md": as_markdown, "json": as_json}
