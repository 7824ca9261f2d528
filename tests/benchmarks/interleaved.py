"""Interleaved benchmark runs of engines in separate processes: while one computes, the others sleep.

    with EngineProcess(Setup("localinfer", path, threads=2, n_ctx=512)) as ours:
        ours.rate(Workload(512, is_prefill=True))            # tokens per second of one run

An engine process runs this file with the Python that has the engine's library. It loads the setup, then reads workloads
as JSON lines from its standard input and writes a JSON line with each result. The parent process loads no engine, so
that different builds of one library can be compared, and their signal handlers, thread pools and environment variables
stay separate.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

import numpy as np

ROOT = Path(__file__).parents[2]
BATCH = 512
SPIN_DOWN_SECONDS = 0.1  # pause before a run, in which threads of the previous run stop spinning
TIMEOUT_SECONDS = 600.0  # for loading an engine, and for one run


@dataclass(frozen=True)
class Workload:
    """A number of tokens, evaluated in one batch or one by one, after `depth` tokens of context."""

    tokens: int
    is_prefill: bool
    depth: int = 0

    @property
    def name(self) -> str:
        """The name in llama-bench's notation."""
        return f"{'pp' if self.is_prefill else 'tg'}{self.tokens}" + (f" @ d{self.depth}" if self.depth else "")

    @property
    def n_ctx(self) -> int:
        """The context length that it needs."""
        return self.depth + self.tokens


@dataclass(frozen=True)
class Setup:
    """An engine, its model and its settings. `engine` is a key of ENGINES; `options` are specific to the engine."""

    engine: str
    path: Path
    threads: int
    n_ctx: int
    options: tuple[tuple[str, str], ...] = ()
    python: str = sys.executable
    environment: tuple[tuple[str, str], ...] = ()


class EngineProcess:
    """An engine in a subprocess, which runs until `close`. Raises RuntimeError if it fails."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (close() does)
        message = json.dumps(asdict(setup) | {"path": str(setup.path)})
        pipe, environment = subprocess.PIPE, os.environ | dict(setup.environment)
        command = [setup.python, __file__, message]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=self.errors)
        try:
            self._read_result()
        except BaseException:
            self.close()
            raise

    def rate(self, test: Workload) -> float:
        """Return the tokens per second of one run; for the engine "memory", the gigabytes per second that it read."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asdict(test)).encode() + b"\n")
        self.process.stdin.flush()
        return float(self._read_result())

    def _read_result(self) -> Any:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT_SECONDS)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            raise RuntimeError(f"{self.setup.engine}: {self._exit_message() if ready else 'no answer'}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.setup.engine}: {answer['error']}")
        return answer["result"]

    def _exit_message(self) -> str:
        """Return why the process ended without a result."""
        code = self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return f"ended with {code}: {lines[-1] if lines else ''}"

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.errors.close()

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Result(NamedTuple):
    """Rates of interleaved runs."""

    ours: list[float]
    theirs: list[float]

    @property
    def ratios(self) -> list[float]:
        """The speedup of each pair of runs."""
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of the ratios of adjacent runs, which is robust against a machine that slows down for both."""
        return median(self.ratios)


def run_interleaved(
    ours: EngineProcess, reference: EngineProcess, test: Workload, repetitions: int, seconds: float = float("inf")
) -> Result:
    """Run A B A B ..., at least two pairs, and no further pairs after `seconds`. The caller warms up the engines."""
    pairs, start = [], time.monotonic()
    while len(pairs) < min(2, repetitions) or (len(pairs) < repetitions and time.monotonic() - start < seconds):
        pairs.append((ours.rate(test), reference.rate(test)))
    return Result([a for a, _ in pairs], [b for _, b in pairs])


# ------------------------------------------------------------------------------------- in the engine process


class Evaluator(Protocol):
    """The interface of an engine."""

    n_vocab: int

    def evaluate(self, tokens: Sequence[int]) -> object: ...

    def rewind(self, n: int) -> int: ...


def localinfer(path: Path, *, threads: int, n_ctx: int, **options: str) -> Evaluator:
    """The engine of this checkout; `options` are fields of Options."""
    sys.path[:0] = [str(ROOT)]
    from localinfer.gguf.reader import open_gguf
    from localinfer.options import Options
    from localinfer.runtime.engine import Engine

    chosen: dict[str, Any] = {"threads": threads, "ctx_size": n_ctx, "batch_size": BATCH, **options}
    return Engine.load(open_gguf(path), Options(**chosen))


def llama_cpp(path: Path, *, threads: int, n_ctx: int, flash_attn: str = "auto") -> Evaluator:
    """llama-cpp-python in the current environment."""
    from llama_cpp_engine import Llama

    return Llama(path, threads=threads, n_ctx=n_ctx, n_batch=BATCH, flash_attn=flash_attn)


def ik_llama_cpp(path: Path, *, threads: int, n_ctx: int) -> Evaluator:
    """ik_llama.cpp, a fork with faster matrix products."""
    from ik_llama_cpp_engine import IkLlama

    return IkLlama(path, threads=threads, n_ctx=n_ctx, n_batch=BATCH)


ENGINES: dict[str, Callable[..., Evaluator]] = {
    "localinfer": localinfer,
    "llama.cpp": llama_cpp,
    "ik_llama.cpp": ik_llama_cpp,
}


def measure_rate(engine: Evaluator, test: Workload) -> float:
    """Return tokens per second. Runs with the same depth reuse the context of the previous run."""
    tokens = np.random.default_rng(0).integers(0, engine.n_vocab, test.n_ctx).tolist()
    n_reused = engine.rewind(test.depth)
    if n_reused < test.depth:
        engine.evaluate(tokens[n_reused : test.depth])
    timed = tokens[test.depth :]
    time.sleep(SPIN_DOWN_SECONDS)
    start = time.perf_counter()
    for chunk in [timed] if test.is_prefill else [[token] for token in timed]:
        engine.evaluate(chunk)
    return len(timed) / (time.perf_counter() - start)


def read_bandwidth(threads: int) -> float:
    """Return the memory read bandwidth of this number of threads in gigabytes per second."""
    sys.path[:0] = [str(ROOT)]
    from localinfer.evaluation import roofline

    roofline.measure.cache_clear()
    return roofline.measure(threads).bandwidth / 1e9


def load_engine(setup: dict[str, Any]) -> Callable[[Workload], float]:
    """Load the engine of a setup and return a function that measures a workload."""
    if setup["engine"] == "memory":
        return lambda test: read_bandwidth(setup["threads"])
    options = dict(setup["options"])
    load = ENGINES[setup["engine"]]
    engine = load(Path(setup["path"]), threads=setup["threads"], n_ctx=setup["n_ctx"], **options)
    return lambda test: measure_rate(engine, test)


def main() -> None:
    """Load the engine and process workloads. The standard output of libraries is redirected to standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)

        def answer(**what: object) -> None:
            answers.write(json.dumps(what) + "\n")
            answers.flush()

        try:
            measure = load_engine(json.loads(sys.argv[1]))
            answer(result="ready")
            for line in sys.stdin:
                answer(result=measure(Workload(**json.loads(line))))
        except Exception as error:
            answer(error=f"{type(error).__name__}: {error}"[:300])


if __name__ == "__main__":
    main()
