"""Runs mutants in children of this process, which has all kernels loaded, and says how each ended.

A child takes some mutants one after the other, because to fork takes as long as to run one. It ends with what it finds,
unless that is an error of Python's.
"""

import faulthandler
import json
import os
import resource
import shutil
import signal
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple, NoReturn

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"}  # or a child would miss their threads

import psutil  # noqa: F401
import sentencepiece  # noqa: F401
import tokenizers  # noqa: F401
from fuzz.draft import Draft
from fuzz.mutations import mutant
from fuzz.sources import Source
from fuzz.trial import NotCompiled, try_file

from localinfer import paths
from localinfer.engine.program import EXECUTE, record
from localinfer.errors import LocalInferError
from localinfer.files.gguf import open_gguf
from localinfer.options import Layer, from_keywords, merge
from quant.jit import loader
from quant.jit.kernel import Kernel

AT_A_TIME = 25  # mutants of a child
CPU_SECONDS = 20  # of a mutant
SECONDS = 600  # while others may use the machine, too
ADDRESS_SPACE = 3 << 30  # bytes more than this process has
MEMORY = 512 << 20  # bytes; a mutant that takes more is a finding
FINDINGS = "signal", "error", "much memory", "no answer"


class Outcome(NamedTuple):
    """`kind` is a way in which it may end ("ran", "refused", "no memory", "not compiled"), or one of FINDINGS."""

    kind: str
    text: str = ""
    kernels: Sequence[str] = ()

    @property
    def is_finding(self) -> bool:
        return self.kind in FINDINGS


class Server:
    """Makes mutants of `sources` in `folder`, and keeps in `findings` what was found.

    `spare_kernels` may be compiled for mutants that want others than the models that they come from.
    """

    def __init__(self, sources: Iterable[Source], folder: Path, findings: Path, spare_kernels: int) -> None:
        self.sources: list[tuple[Source, list[bytes]]] = []  # with the keys that their architectures understand
        self.findings, self.spare_kernels = findings, spare_kernels
        self.mutant, self.log = folder / "mutant-00001-of-00002.gguf", folder / "log"
        wanted = {EXECUTE}
        for source in sources:
            try:
                recorder = record(open_gguf(source.path), merge(from_keywords({**source.options, "ctx_size": 64})))
            except LocalInferError as refusal:
                print(f"left out: {refusal}", file=sys.stderr)
                continue
            self.sources.append((source, sorted(key.encode() for key in recorder.keys._asked)))
            wanted |= set(recorder.plan.kernels)
        self.compile(sorted(wanted, key=Kernel.to_json))

    def compile(self, wanted: Sequence[Kernel]) -> None:
        """Have these kernels, and every child from now on."""
        loader.addresses(wanted, paths.jit_dir(), show)

    def run(self, seeds: Iterable[int]) -> Iterator[tuple[int, Outcome]]:
        """What comes of the mutants with these seeds."""
        todo = deque(seeds)
        while todo:
            batch = list(islice(todo, AT_A_TIME))
            for seed, outcome in zip(batch, self.in_a_child(batch), strict=False):
                todo.popleft()
                if outcome.kind == "not compiled" and len(outcome.kernels) <= self.spare_kernels:
                    self.spare_kernels -= len(outcome.kernels)
                    self.compile([Kernel.from_json(line) for line in outcome.kernels])
                    todo.append(seed)
                    continue
                if outcome.is_finding:
                    self.keep(seed, outcome)
                yield seed, outcome

    def in_a_child(self, seeds: Sequence[int]) -> Iterator[Outcome]:
        """The outcomes of the first seeds, up to one that ended the child."""
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            self.answer(seeds, writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            answers = [Outcome(*json.loads(line)) for line in pipe]
        _, status = os.waitpid(child, 0)
        yield from answers
        if os.WIFSIGNALED(status):
            yield Outcome("signal", f"{signal.Signals(os.WTERMSIG(status)).name}\n{self.log.read_text()}")
        elif code := os.waitstatus_to_exitcode(status):
            yield Outcome("no answer", f"exit code {code}\n{self.log.read_text()}")

    def answer(self, seeds: Sequence[int], pipe: int) -> NoReturn:
        """In the child: try the mutants, write a line about each into the pipe, and end."""
        log = os.open(self.log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.enable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = 1
        try:
            for seed in seeds:
                limit()
                outcome = self.outcome(seed)
                os.write(pipe, json.dumps(outcome).encode() + b"\n")
                if outcome.kind == "much memory":
                    break  # what another takes would not be seen
            code = 0
        except BaseException:  # nothing may pass: it would end the parent's work here
            traceback.print_exc()
        os._exit(code)

    def outcome(self, seed: int) -> Outcome:
        """What comes of a mutant, if it does not end the process."""
        choose, before = Random(seed), memory()
        own = self.write(choose)
        try:
            refusal = try_file(self.mutant, own, choose)
        except NotCompiled as missing:
            return Outcome("not compiled", str(missing), [kernel.to_json() for kernel in missing.kernels])
        except MemoryError as error:
            return Outcome("no memory", str(error))
        except BaseException:
            return Outcome("error", traceback.format_exc())
        if memory() > before + MEMORY:
            return Outcome("much memory", f"{memory() - before >> 20} MiB")
        return Outcome("refused" if refusal else "ran", refusal)

    def write(self, choose: Random) -> Layer:
        """Write a mutant's file; the options of the model that it comes from."""
        source, understood = choose.choice(self.sources)
        self.mutant.write_bytes(mutant(Draft.of(source.path, understood), choose))
        return source.options

    def keep(self, seed: int, outcome: Outcome) -> None:
        """Put the mutant's file and what is known of it where they can be looked at."""
        self.findings.mkdir(parents=True, exist_ok=True)
        self.write(Random(seed))
        shutil.copy(self.mutant, self.findings / f"{seed}.gguf")
        (self.findings / f"{seed}.txt").write_text(f"{outcome.kind}: {outcome.text}\n")


def limit() -> None:
    """Have the system end this process where the next mutant hangs, and refuse it memory without end."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_seconds = int(used.ru_utime + used.ru_stime) + CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + ADDRESS_SPACE
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def memory() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def show(stage: str, done: int, total: int) -> None:
    """A line about the kernels that are compiled."""
    print(f"\r{stage} {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)
