"""The fork server: runs mutants in child processes that inherit the loaded kernels, and reports each outcome.

A child runs several mutants, because a fork takes as long as one mutant. A finding other than a Python exception ends
the child.
"""

import faulthandler
import gc
import json
import os
import resource
import shutil
import signal
import sys
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple, NoReturn

# Threads of libraries do not survive a fork.
os.environ |= {"TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"}

import psutil  # noqa: F401
import sentencepiece  # noqa: F401
import tokenizers  # noqa: F401
from fuzz.corpus import SeedModel
from fuzz.mutable_gguf import MutableGGUF
from fuzz.mutations import mutate
from fuzz.target import KernelsNotCompiled, run_file

from localinfer import paths
from localinfer.errors import LocalInferError
from localinfer.gguf.reader import open_gguf
from localinfer.options import Layer, from_keywords, merge
from localinfer.runtime.graph_building import build_graph
from localinfer.runtime.requirements import kernels_of_tokenizer
from localinfer.runtime.thread_pool import POOL_KERNELS
from quant.jit import kernel_cache, loader
from quant.jit.kernel import Kernel

CPU_SECONDS = 20  # per mutant
WALL_SECONDS = 600  # per mutant; large, because other processes may use the machine
EXTRA_ADDRESS_SPACE = 3 << 30  # bytes in addition to those of this process
MAX_MEMORY = 512 << 20  # bytes; a mutant that uses more is a finding
FINDINGS = "signal", "error", "much memory", "no answer"


class Outcome(NamedTuple):
    """How a mutant ended: `kind` is "ran", "refused", "no memory", "not compiled", or one of FINDINGS."""

    kind: str
    text: str = ""
    kernels: Sequence[str] = ()

    @property
    def is_finding(self) -> bool:
        return self.kind in FINDINGS


class ForkServer(ABC):
    """Runs mutants, which are written to the file `mutant`, and saves findings in the folder `findings`.

    Compiles up to `spare_kernels` kernels that mutants need in addition to those of their sources.
    """

    mutants_per_child = 25

    def __init__(self, mutant: Path, findings: Path, spare_kernels: int = 0) -> None:
        self.findings, self.spare_kernels = findings, spare_kernels
        self.mutant, self.log = mutant, mutant.with_name("log")

    @abstractmethod
    def write_mutant(self, choose: Random) -> object:
        """Write the file of a mutant."""

    @abstractmethod
    def run_one(self, choose: Random) -> str:
        """Write a mutant and run it in this process. Return "" for success, else the error message.

        Raises KernelsNotCompiled, and every exception that is not a LocalInferError.
        """

    def load_kernels(self, expected: Sequence[Kernel]) -> None:
        """Compile or load these kernels, so that all later children inherit them."""
        loader.load_kernels(expected, paths.jit_dir(), print_progress)

    def run(self, seeds: Iterable[int]) -> Iterator[tuple[int, Outcome]]:
        """Yield the outcomes of the mutants with these seeds."""
        todo = deque(seeds)
        while todo:
            batch = list(islice(todo, self.mutants_per_child))
            for seed, outcome in zip(batch, self.run_in_child(batch), strict=False):
                todo.popleft()
                if outcome.kind == "not compiled" and len(outcome.kernels) <= self.spare_kernels:
                    self.spare_kernels -= len(outcome.kernels)
                    self.load_kernels([Kernel.from_json(line) for line in outcome.kernels])
                    todo.append(seed)
                    continue
                if outcome.is_finding:
                    self.save_finding(seed, outcome)
                yield seed, outcome

    def run_in_child(self, seeds: Sequence[int]) -> Iterator[Outcome]:
        """Run mutants in a child process and yield their outcomes, up to one that ended the child."""
        reading, writing = os.pipe()
        gc.freeze()  # else each child would look at, and copy, all objects of this process again and again
        child = os.fork()
        if not child:
            os.close(reading)
            self.run_child(seeds, writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            answers = [Outcome(*json.loads(line)) for line in pipe]
        _, status = os.waitpid(child, 0)
        yield from answers
        if os.WIFSIGNALED(status):
            yield Outcome("signal", f"{signal.Signals(os.WTERMSIG(status)).name}\n{self.log.read_text()}")
        elif code := os.waitstatus_to_exitcode(status):
            yield Outcome("no answer", f"exit code {code}\n{self.log.read_text()}")

    def run_child(self, seeds: Sequence[int], pipe: int) -> NoReturn:
        """Run the mutants, write a line for each to the pipe, and exit. Called in the child."""
        log = os.open(self.log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.enable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = 1
        try:
            for seed in seeds:
                set_limits()
                outcome = self.run_mutant(seed)
                os.write(pipe, json.dumps(outcome).encode() + b"\n")
                if outcome.kind == "much memory":
                    break  # the peak hides the memory of further mutants
            code = 0
        except BaseException:  # an exception must not continue in the parent's code
            traceback.print_exc()
        os._exit(code)

    def run_mutant(self, seed: int) -> Outcome:
        """Run a mutant in this process and return its outcome."""
        before = peak_memory()
        try:
            refusal = self.run_one(Random(seed))
        except KernelsNotCompiled as missing:
            return Outcome("not compiled", str(missing), [kernel.to_json() for kernel in missing.kernels])
        except MemoryError as error:
            return Outcome("no memory", str(error))
        except BaseException:
            return Outcome("error", traceback.format_exc())
        if peak_memory() > before + MAX_MEMORY:
            return Outcome("much memory", f"{peak_memory() - before >> 20} MiB")
        if len(refusal.splitlines()) > 1:
            return Outcome("error", f"an error of several lines: {refusal}")
        return Outcome("refused" if refusal else "ran", refusal)

    def save_finding(self, seed: int, outcome: Outcome) -> None:
        """Save the mutant's file and a description of its outcome."""
        self.findings.mkdir(parents=True, exist_ok=True)
        self.write_mutant(Random(seed))
        shutil.copy(self.mutant, self.findings / f"{seed}{self.mutant.suffix}")
        (self.findings / f"{seed}.txt").write_text(f"{outcome.kind}: {outcome.text}\n")


class ModelServer(ForkServer):
    """The fork server for mutants of models."""

    def __init__(self, sources: Iterable[SeedModel], folder: Path, findings: Path, spare_kernels: int) -> None:
        super().__init__(folder / "mutant-00001-of-00002.gguf", findings, spare_kernels)
        self.sources: list[tuple[MutableGGUF, Layer]] = []  # each with its options
        expected = set(POOL_KERNELS)
        for source in sources:
            try:
                options = merge(from_keywords({**source.options, "ctx_size": 64}))
                f = open_gguf(source.path)
                model_graph = build_graph(f, options)
            except LocalInferError as refusal:
                print(f"skipped: {refusal}", file=sys.stderr)
                continue
            understood = sorted(key.encode() for key in model_graph.hparams._used)
            self.sources.append((MutableGGUF.read(source.path, understood), source.options))
            expected |= set(kernels_of_tokenizer(f))
            for large_batch in (False, True):
                expected |= set(model_graph.graph.kernels(large_batch=large_batch))
        self.load_kernels(sorted(expected, key=Kernel.to_json))
        kernel_cache.cache_key = cache(kernel_cache.cache_key)  # each child reads several files for it

    def run_one(self, choose: Random) -> str:
        return run_file(self.mutant, self.write_mutant(choose), choose)

    def write_mutant(self, choose: Random) -> Layer:
        """Write the file of a mutant, and return the options of its source model."""
        source, options = choose.choice(self.sources)
        self.mutant.write_bytes(mutate(source.copy(), choose))
        return options


def set_limits() -> None:
    """Limit the CPU time, the wall-clock time and the address space for the next mutant."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_seconds = int(used.ru_utime + used.ru_stime) + CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        maximum = pages * resource.getpagesize() + EXTRA_ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_AS, (maximum, resource.RLIM_INFINITY))


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def print_progress(stage: str, done: int, total: int) -> None:
    """Print the progress of compiling kernels."""
    print(f"\r{stage} {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)
