"""`localinfer bench`: llama-bench's tests, in llama-bench's columns.

    pp512          512 tokens of a prompt, at once       tg128        128 tokens, one after the other
    pp512 @ d4096  the same, behind 4096 tokens          pp512+tg128  both, in tokens of either

Measures the engine alone: random tokens go in, logits come out. Tokenizing and sampling are not in it. Beside that
stands what it is worth on this machine: bytes of weights and cache, or multiply-accumulates, and their share of what
simple kernels reach here (`localinfer.judging.roofline`).
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
from cli.flags import given, option
from cli.loading import fetched
from cli.measuring.plot import plot, promised_plot
from cli.measuring.results import WRITERS, Result, Subject, Test, machine_line
from localinfer.errors import UsageError
from localinfer.options import FLAGS, Options, from_environment, merge
from localinfer.plan.work import NOTHING_TO_DO, Amount

if TYPE_CHECKING:
    from localinfer.engine.engine import Engine
    from localinfer.files.gguf import GGUF


def bench_command(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Paths of GGUF files, or names.")],
    prompts: Annotated[
        str, typer.Option("-p", "--n-prompt", metavar="N,...", help="Tokens of a prompt (0: no such test).")
    ] = "512",
    answers: Annotated[
        str, typer.Option("-n", "--n-gen", metavar="N,...", help="Tokens of an answer (0: no such test).")
    ] = "128",
    both: Annotated[
        list[str] | None,
        typer.Option("-pg", metavar="N,N", help="Tokens of a prompt and of an answer to it; may be repeated."),
    ] = None,
    depths: Annotated[
        str, typer.Option("-d", "--n-depth", metavar="N,...", help="Tokens that are there before.")
    ] = "0",
    threads: Annotated[
        str, typer.Option("-t", "--threads", metavar="N,...", help="Threads (0: the physical cores).")
    ] = "0",
    threads_batch: Annotated[str | None, option("threads_batch")] = None,
    batch_size: Annotated[str | None, option("batch_size")] = None,
    ubatch_size: Annotated[str | None, option("ubatch_size")] = None,
    precision: Annotated[str | None, option("precision")] = None,
    cache_type_k: Annotated[str | None, option("cache_type_k")] = None,
    cache_type_v: Annotated[str | None, option("cache_type_v")] = None,
    mmap: Annotated[bool | None, option("mmap")] = None,
    repetitions: Annotated[int, typer.Option("-r", "--repetitions", metavar="N", help="Runs of a test.")] = 5,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="|".join(WRITERS), help="How results are written.")
    ] = "md",
    plot_file: Annotated[
        str | None,
        typer.Option("--plot", metavar="FILE", help="Draw t/s against the tokens before, to a .png or .svg."),
    ] = None,
) -> None:
    """Measure prompt processing (pp) and text generation (tg) in tokens a second.

    The last two columns are the multiply-accumulates a second of a prompt, or the bytes a second of an answer,
    and how many per cent that is of the most that this machine can do, which is measured, too.

    \b
      localinfer bench smollm2 -p 512 -n 128 -t 1,2 -d 0,4096 -r 5 -o md
      localinfer bench -m smollm2 -m gemma3-270m -p 0 -n 0 -pg 512,128 -o csv
      localinfer bench smollm2 -p 0 -n 32 -d 0,1024,2048,4096 --plot depth.svg
    """
    if output not in WRITERS:
        raise UsageError(f"--output: must be {' or '.join(WRITERS)}, not {output}")
    if repetitions < 1:
        raise UsageError("--repetitions: must be at least 1")
    sizes = [(tokens, 0) for tokens in numbers("--n-prompt", prompts)]
    sizes += [(0, tokens) for tokens in numbers("--n-gen", answers)]
    sizes += [pair("-pg", text) for text in both or []]
    tests = [
        Test(*size, depth, count)
        for count in numbers("--threads", threads, high=int(FLAGS["threads"].high))
        for depth in numbers("--n-depth", depths)
        for size in sizes
        if any(size)
    ]
    if not tests:
        raise UsageError("--n-prompt, --n-gen, -pg: nothing to measure")
    picture = promised_plot(plot_file) if plot_file is not None else None
    typed: dict[str, object] = {
        "threads_batch": threads_batch,
        "batch_size": batch_size,
        "ubatch_size": ubatch_size,
        "precision": precision,
        "cache_type_k": cache_type_k,
        "cache_type_v": cache_type_v,
        "mmap": mmap,
    }
    layers = given(typed), from_environment(os.environ)
    results = [result for model in models for result in measure(model, tests, merge(*layers), repetitions)]
    screen.write(WRITERS[output](results))
    for roofline in dict.fromkeys(result.roofline for result in results):
        screen.aside(machine_line(roofline))
    if picture:
        plot(picture, results)


def numbers(option: str, text: str, high: int = 1 << 20) -> list[int]:
    """A list such as 1,2,4."""
    values = [int(part) if re.fullmatch(r"\d{1,9}", part) else -1 for part in text.split(",")]
    if not all(0 <= value <= high for value in values):
        raise UsageError(f"{option}: must be whole numbers from 0 to {high}, such as 1,2; not {text}")
    return values


def pair(option: str, text: str) -> tuple[int, int]:
    """Two numbers such as 512,128."""
    found = numbers(option, text)
    if len(found) != 2:
        raise UsageError(f"{option}: must be two numbers, such as 512,128; not {text}")
    return found[0], found[1]


def measure(model: str, tests: Sequence[Test], given: Options, repetitions: int) -> list[Result]:
    """Run the tests, with one engine for all that have the same number of threads."""
    status = screen.Status()
    path = fetched(model, status)
    with status.busy(f"loading {screen.one_line(model)}"):
        from localinfer.engine import reading
        from localinfer.engine.engine import Engine
        from localinfer.files.gguf import open_gguf
        from localinfer.judging.roofline import measured

        n_ctx = max(test.depth + test.tokens for test in tests)
        f = reading.as_asked(open_gguf(path), dataclasses.replace(given, ctx_size=n_ctx), status)
    results: list[Result] = []
    for count in dict.fromkeys(test.threads for test in tests):
        options = dataclasses.replace(given, ctx_size=n_ctx, threads=count)
        with status.busy(f"loading {screen.one_line(model)}"):
            engine = Engine(f, options, status)
        subject = subject_of(f, dataclasses.replace(given, precision=engine.program.precision))
        try:
            for test in (each for each in tests if each.threads == count):
                at_once = test.n_prompt or 1
                known = dataclasses.replace(test, threads=engine.program.threads_for(at_once))
                with status.busy("measuring what this machine can do"):
                    roofline = measured(known.threads)
                seconds = run(engine, known, repetitions, status)
                results.append(Result(subject, known, seconds, amount(engine, known), roofline))
        finally:
            engine.close()
    return results


def run(engine: "Engine", test: Test, repetitions: int, status: screen.Status) -> list[float]:
    """The seconds of each repetition, after a run to warm up."""
    seconds = []
    for repetition in range(-1, repetitions):
        fill(engine, test.depth)
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


def amount(engine: "Engine", test: Test) -> Amount:
    """What there is to do in one repetition."""
    prompt = [engine.amount(test.n_prompt, test.depth)] if test.n_prompt else []
    answer = [engine.amount(1, test.depth + test.n_prompt + token) for token in range(test.n_gen)]
    return sum([*prompt, *answer], NOTHING_TO_DO)


def fill(engine: "Engine", depth: int) -> None:
    """Bring the cache to `depth` tokens; a sliding window may have lost what was there."""
    kept = engine.rewind(depth)
    if kept < depth:
        engine.evaluate(random_tokens(engine, depth - kept))


def random_tokens(engine: "Engine", count: int) -> list[int]:
    return [random.randrange(engine.n_vocab) for _ in range(count)]


def subject_of(f: "GGUF", options: Options) -> Subject:
    from quant.jit.cpu import target

    kinds: dict[str, int] = {}
    for tensor in f.tensors.values():
        kinds[tensor.type_name] = kinds.get(tensor.type_name, 0) + tensor.nbytes
    name = f"{f.get('general.architecture', str, '?')} {f.get('general.size_label', str, '')}".strip()
    return Subject(
        file=str(f.path),
        model=screen.one_line(f"{name} {max(kinds, key=lambda kind: kinds[kind])}"),
        size=sum(kinds.values()),
        params=sum(tensor.n_elements for tensor in f.tensors.values()),
        backend=f"CPU {target().isa}",
        options=options,
    )
