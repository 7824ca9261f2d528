"""Engines in processes of their own that take turns: one computes, and the others sleep.

    with Contestant(Setup("localinfer", path, threads=2, n_ctx=512)) as ours:
        ours.rate(Test(512, at_once=True))                   # tokens a second of one run

A contestant is this file, run by the Python that has its library. It loads what its setup says, and then reads
tests from its standard input, a JSON object a line, and answers each with one of its own. The parent needs no
engine, so that two builds of one library can meet, and what one of them does to its process (signals, thread pools,
environment) is not felt by the others.
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
PAUSE = 0.1  # seconds in which threads of the run before stop spinning
PATIENCE = 600.0  # seconds that a contestant may take to load, or for a run


@dataclass(frozen=True)
class Test:
    """So many tokens at once, or one by one, after `depth` others."""

    tokens: int
    at_once: bool
    depth: int = 0

    @property
    def name(self) -> str:
        """As llama-bench prints it."""
        return f"{'pp' if self.at_once else 'tg'}{self.tokens}" + (f" @ d{self.depth}" if self.depth else "")

    @property
    def n_ctx(self) -> int:
        """The context that it needs."""
        return self.depth + self.tokens


@dataclass(frozen=True)
class Setup:
    """An engine, what it loads, and how. `engine` is a key of ENGINES; `options` are the engine's own."""

    engine: str
    path: Path
    threads: int
    n_ctx: int
    options: tuple[tuple[str, str], ...] = ()
    python: str = sys.executable
    environment: tuple[tuple[str, str], ...] = ()


class Contestant:
    """The parent's side: a process that is there until `close`. RuntimeError says why it failed."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (close() does)
        message = json.dumps(asdict(setup) | {"path": str(setup.path)})
        pipe, environment = subprocess.PIPE, os.environ | dict(setup.environment)
        command = [setup.python, __file__, message]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=self.errors)
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def rate(self, test: Test) -> float:
        """Tokens a second of one run; of the engine "memory", the gigabytes a second that it read."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asdict(test)).encode() + b"\n")
        self.process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            raise RuntimeError(f"{self.setup.engine}: {self._last_words() if ready else 'no answer'}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.setup.engine}: {answer['error']}")
        return answer["result"]

    def _last_words(self) -> str:
        """Why a process ended that did not say it itself."""
        code = self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return f"ended with {code}: {lines[-1] if lines else ''}"

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.errors.close()

    def __enter__(self) -> "Contestant":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Result(NamedTuple):
    """Rates of runs that took turns."""

    ours: list[float]
    theirs: list[float]

    @property
    def ratios(self) -> list[float]:
        """How many times as fast, run by run."""
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of the ratios of neighbouring runs, which a machine that slows down for both leaves alone."""
        return median(self.ratios)


def take_turns(
    ours: Contestant, theirs: Contestant, test: Test, repetitions: int, seconds: float = float("inf")
) -> Result:
    """A B A B ..., at least two of each, and no further ones after so many seconds; warmed up before."""
    pairs, start = [], time.monotonic()
    while len(pairs) < min(2, repetitions) or (len(pairs) < repetitions and time.monotonic() - start < seconds):
        pairs.append((ours.rate(test), theirs.rate(test)))
    return Result([a for a, _ in pairs], [b for _, b in pairs])


# ------------------------------------------------------------------------------------- the process's side


class Evaluator(Protocol):
    """What engines can do."""

    n_vocab: int

    def evaluate(self, tokens: Sequence[int]) -> object: ...

    def rewind(self, n: int) -> int: ...


def localinfer(path: Path, *, threads: int, n_ctx: int, **options: str) -> Evaluator:
    """The engine of this checkout; `options` are fields of Options."""
    sys.path[:0] = [str(ROOT)]
    from localinfer.engine.engine import Engine
    from localinfer.files.gguf import open_gguf
    from localinfer.options import Options

    chosen: dict[str, Any] = {"threads": threads, "ctx_size": n_ctx, "batch_size": BATCH, **options}
    return Engine(open_gguf(path), Options(**chosen))


def llama_cpp(path: Path, *, threads: int, n_ctx: int, flash_attn: str = "auto") -> Evaluator:
    """llama-cpp-python, however it was compiled."""
    from peer import Llama

    return Llama(path, threads=threads, n_ctx=n_ctx, n_batch=BATCH, flash_attn=flash_attn)


def ik_llama_cpp(path: Path, *, threads: int, n_ctx: int) -> Evaluator:
    """Its faster fork."""
    from ik_peer import IkLlama

    return IkLlama(path, threads=threads, n_ctx=n_ctx, n_batch=BATCH)


ENGINES: dict[str, Callable[..., Evaluator]] = {
    "localinfer": localinfer,
    "llama.cpp": llama_cpp,
    "ik_llama.cpp": ik_llama_cpp,
}


def run(engine: Evaluator, test: Test) -> float:
    """Tokens a second. What is already in the context counts as depth, so that it is filled once for many runs."""
    tokens = np.random.default_rng(0).integers(0, engine.n_vocab, test.n_ctx).tolist()
    kept = engine.rewind(test.depth)
    if kept < test.depth:
        engine.evaluate(tokens[kept : test.depth])
    timed = tokens[test.depth :]
    time.sleep(PAUSE)
    start = time.perf_counter()
    for part in [timed] if test.at_once else [[token] for token in timed]:
        engine.evaluate(part)
    return len(timed) / (time.perf_counter() - start)


def read_bandwidth(threads: int) -> float:
    """Gigabytes a second that so many threads read from memory which do nothing else."""
    sys.path[:0] = [str(ROOT)]
    from localinfer.judging import roofline

    roofline.measured.cache_clear()
    return roofline.measured(threads).bandwidth / 1e9


def opened(setup: dict[str, Any]) -> Callable[[Test], float]:
    """What a setup asks for, ready to run."""
    if setup["engine"] == "memory":
        return lambda test: read_bandwidth(setup["threads"])
    options = dict(setup["options"])
    load = ENGINES[setup["engine"]]
    engine = load(Path(setup["path"]), threads=setup["threads"], n_ctx=setup["n_ctx"], **options)
    return lambda test: run(engine, test)


def main() -> None:
    """Load, then answer; libraries that print to standard output print to standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)

        def answer(**what: object) -> None:
            answers.write(json.dumps(what) + "\n")
            answers.flush()

        try:
            measure = opened(json.loads(sys.argv[1]))
            answer(result="ready")
            for line in sys.stdin:
                answer(result=measure(Test(**json.loads(line))))
        except Exception as error:
            answer(error=f"{type(error).__name__}: {error}"[:300])


if __name__ == "__main__":
    main()
