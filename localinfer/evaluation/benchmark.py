"""Benchmark of an engine: the tests of llama-bench.

    pp512          prefill of 512 tokens                   tg128        decode of 128 tokens
    pp512 @ d4096  the same after 4096 tokens of context   pp512+tg128  prefill, then decode

The prompt of an encoder-decoder model goes to the encoder; the decoder decodes after a prompt of `depth` tokens.

The benchmark measures the engine alone, with random tokens, without tokenization and sampling. Each result also has the
measured peak rates of this machine (`localinfer.evaluation.roofline`), which its own rates are compared with.
"""

import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from localinfer.errors import UsageError
from localinfer.evaluation.roofline import Roofline, evaluation_cost, measure
from localinfer.gguf.overrides import open_overridden
from localinfer.gguf.reader import GGUF
from localinfer.graph.ops.cost import NO_COST, Cost
from localinfer.graph.properties.model_properties import has_decoder
from localinfer.options import Options
from localinfer.runtime import weight_loading
from localinfer.runtime.encoder_tokens import prompt_tokens
from localinfer.runtime.engine import Engine
from localinfer.runtime.expert_cache.cache import Statistics as ExpertStatistics
from quant.jit.cpu import target
from quant.jit.loader import Progress

N_BESIDE = 2  # tokens of an encoder-decoder model before a test of decode: of the encoder, and the decoder's start


@dataclass(frozen=True, slots=True)
class BenchmarkTest:
    """A test: `n_prompt` tokens of prefill, then `n_gen` of decode, after `depth` tokens of context."""

    n_prompt: int
    n_gen: int
    depth: int
    threads: int

    @property
    def tokens(self) -> int:
        return self.n_prompt + self.n_gen

    @property
    def kind(self) -> str:
        """pp, tg, or pg for both."""
        return "pg" if self.n_prompt and self.n_gen else "pp" if self.n_prompt else "tg"

    @property
    def name(self) -> str:
        parts = [f"pp{self.n_prompt}" * bool(self.n_prompt), f"tg{self.n_gen}" * bool(self.n_gen)]
        return "+".join(filter(None, parts)) + (f" @ d{self.depth}" if self.depth else "")


@dataclass(frozen=True, slots=True)
class BenchmarkedModel:
    """What a benchmark reports of its model."""

    file: str
    name: str  # architecture, size and most frequent tensor type
    size: int  # bytes, all tensors
    params: int
    backend: str
    options: Options


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """The result of a test: measured times, the cost of one repetition, and the roofline for its number of threads."""

    model: BenchmarkedModel
    test: BenchmarkTest
    seconds: list[float]  # of each repetition
    cost: Cost  # of one repetition
    roofline: Roofline
    experts: ExpertStatistics | None = None  # of all repetitions, if experts are read from the storage

    @property
    def rates(self) -> list[float]:
        """Tokens per second of each repetition."""
        return [self.test.tokens / each for each in self.seconds]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.rates)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.rates) if len(self.rates) > 1 else 0.0

    def per_second(self, amount: float) -> float:
        """Return the rate per second of an amount that is given per repetition."""
        return amount * self.mean / self.test.tokens

    @property
    def bandwidth_fraction(self) -> float:
        """The fraction of the time that reading the bytes takes at peak bandwidth."""
        return self.per_second(self.roofline.memory_time(self.cost))

    @property
    def peak_fraction(self) -> float:
        """The fraction of the time that the multiply-accumulates take at peak throughput."""
        return self.per_second(self.roofline.compute_time(self.cost))


def benchmark(
    path: Path,
    tests: Sequence[BenchmarkTest],
    options: Options,
    repetitions: int,
    on_activity: Callable[[str], None],
    progress: Progress | None = None,
) -> Iterator[BenchmarkResult]:
    """Run the tests of a model file and yield their results, with one engine per number of threads.

    Each test runs once to warm up, then `repetitions` times. `on_activity` receives what happens next, in a few words.
    Raises what `open_overridden` and `Engine.load` raise.
    """
    on_activity(f"loading {path.name}")
    f = open_overridden(path, options)
    n_ctx = max(test.depth + test.tokens for test in tests) + (N_BESIDE if has_decoder(f) else 0)
    f = weight_loading.load_weights(f, replace(options, ctx_size=n_ctx), progress)
    for n_threads in dict.fromkeys(test.threads for test in tests):
        on_activity(f"loading {path.name}")
        engine = Engine.load(f, replace(options, ctx_size=n_ctx, threads=n_threads), progress)
        for warning in engine.warnings:
            warnings.warn(warning, stacklevel=2)
        model = describe_model(f, replace(options, precision=engine.compiled_graph.precision))
        try:
            for test in (each for each in tests if each.threads == n_threads):
                resolved = replace(test, threads=engine.compiled_graph.threads_for(test.n_prompt or 1))
                on_activity("measuring the peak of this machine")
                roofline = measure(resolved.threads)
                seconds, experts = run_test(engine, resolved, repetitions, on_activity)
                yield BenchmarkResult(model, resolved, seconds, cost_of_test(engine, resolved), roofline, experts)
        finally:
            engine.close()


def run_test(
    engine: Engine, test: BenchmarkTest, repetitions: int, on_activity: Callable[[str], None]
) -> tuple[list[float], ExpertStatistics | None]:
    """Return the seconds of each repetition, after a warmup run, and the statistics of the expert cache, if any."""
    seconds, cache = [], engine.compiled_graph.expert_cache
    for repetition in range(-1, repetitions):
        if repetition == 0 and cache:
            cache.take_statistics()
        if engine.context.encoder_decoder:
            prompt = begin_encoder(engine, test)
        else:
            fill_cache(engine, test.depth)
            prompt = random_tokens(engine, test.n_prompt)
        on_activity(f"{test.name}, {test.threads} threads: {repetition + 1} of {repetitions}")
        tokens = random_tokens(engine, test.n_gen)
        begin = time.perf_counter()
        if prompt:
            engine.evaluate(prompt)
        for token in tokens:
            engine.evaluate([token])
        if repetition >= 0:
            seconds.append(time.perf_counter() - begin)
    return seconds, cache.take_statistics() if cache else None


def begin_encoder(engine: Engine, test: BenchmarkTest) -> list[int]:
    """Return the first tokens of a test of an encoder-decoder model: a prompt of `n_prompt` tokens, of which the last
    one is the decoder's. Without any, evaluate a prompt of `depth` tokens.

    Raises UsageError for tests with both.
    """
    if test.n_prompt and test.depth:
        raise UsageError("n_depth: the prompt of an encoder-decoder model comes first")
    engine.reset()
    model_graph = engine.compiled_graph.model_graph
    if test.n_prompt:
        return prompt_tokens(random_tokens(engine, max(1, test.n_prompt - 1)), model_graph)
    engine.evaluate(prompt_tokens(random_tokens(engine, max(1, test.depth)), model_graph))
    return []


def cost_of_test(engine: Engine, test: BenchmarkTest) -> Cost:
    """Return the cost of one repetition of a test."""
    if start := engine.compiled_graph.model_graph.decoder_start:  # the first op of a decoder, after those of an encoder
        prompts = [engine.graph.op_costs(test.n_prompt, 0, 0)[:start]] if test.n_prompt else []
        n_past = test.depth + test.n_prompt
        steps = [engine.graph.op_costs(1, n_past + step, 1)[start:] for step in range(test.n_gen + bool(prompts))]
        return sum(chain.from_iterable([*prompts, *steps]), NO_COST)
    prefill = evaluation_cost(engine.graph, test.n_prompt, test.depth)
    n_past = test.depth + test.n_prompt
    return sum((evaluation_cost(engine.graph, 1, n_past + token) for token in range(test.n_gen)), prefill)


def fill_cache(engine: Engine, depth: int) -> None:
    """Fill the KV cache to `depth` tokens. A sliding window may have evicted earlier tokens."""
    n_cached = engine.rewind(depth)
    if n_cached < depth:
        engine.evaluate(random_tokens(engine, depth - n_cached))


def random_tokens(engine: Engine, count: int) -> list[int]:
    """Return `count` random token ids of the model's vocabulary."""
    return [random.randrange(engine.n_vocab) for _ in range(count)]


def describe_model(f: GGUF, options: Options) -> BenchmarkedModel:
    """Return what a benchmark reports of the model in `f`."""
    type_bytes: dict[str, int] = {}
    for tensor in f.tensors.values():
        type_bytes[tensor.type_name] = type_bytes.get(tensor.type_name, 0) + tensor.nbytes
    name = f"{f.get('general.architecture', str, '?')} {f.get('general.size_label', str, '')}".strip()
    return BenchmarkedModel(
        file=str(f.path),
        name=f"{name} {max(type_bytes, key=lambda type_name: type_bytes[type_name])}",
        size=sum(type_bytes.values()),
        params=sum(tensor.n_elements for tensor in f.tensors.values()),
        backend=f"CPU {target().isa}",
        options=options,
    )
