"""Quantizing with error feedback, layer by layer: what a layer's matrices meet is seen when its turn comes.

    calibrate(mixture, out, chunks, threads=2)

Two engines read the chunks of a text side by side. The one of the source shows what the matrices of a block are
multiplied with; these are encoded for such inputs (`quant.encoders.feedback`) and written into their place; then the
engine of the file in the making, which sees what is written, computes what the next block will meet. So each block
makes up for errors of those before it, too, as GPTQ has it (Frantar et al., 2022), and no more is in memory than the
chunks' residual streams and the covariances of one block. Finished blocks outlive an interruption.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from localinfer.engine import machine
from localinfer.engine.engine import Engine
from localinfer.engine.inputs import ExpertInputs, Given, Inputs
from localinfer.engine.probe import Probe
from localinfer.errors import NotEnoughMemory
from localinfer.files.gguf import open_gguf
from localinfer.files.safe_file import require_free_name
from localinfer.files.source import SourceTensor
from localinfer.files.unfinished import Unfinished, unfinished
from localinfer.options import Options
from localinfer.quantizing.assumed import TABLE, with_assumed
from localinfer.quantizing.crew import Crew
from localinfer.quantizing.gptq import checked_triangle, feedback_encoders, takes_feedback
from localinfer.quantizing.mixture import Mixture
from localinfer.quantizing.quantize import EncoderOf, Job, Output, encoders, give, outputs_of, refuse_sources
from localinfer.version import VERSION
from quant.encoders.feedback import REVISIONS, ROWS, rounds_columns
from quant.jit.loader import Progress

OUTPUT = "output.weight"
SEARCH = 2000  # what the search for the blocks of a weight takes, in multiplications
RUN = 0.5  # what multiplying with blocks takes, as a part of multiplying with floats

Floats = NDArray[np.float32]
Chunks = NDArray[np.int32]  # (chunks, tokens)
Found = dict[tuple[str, ...], Inputs | ExpertInputs]  # what matrices meet, by the names of those that share it


class Spectator:
    """Is told how far it is: to be overridden."""

    def begun(self, done: int, blocks: int, discarded: str) -> None:
        """So many of the blocks are finished already; why those of an earlier run are of no use, if there were any."""

    def step(self, what: str, share: float) -> None:
        """What is done next, and the share of the work that is behind it."""

    def tensor(self, tensor: SourceTensor, done: int) -> None:
        """Of a tensor, so many weights are encoded."""

    def kept(self, done: int) -> None:
        """So many blocks are finished, and on the disk."""


def calibrate(
    mixture: Mixture,
    out: Path,
    chunks: Chunks,
    *,
    threads: int = 1,
    replace: bool = False,
    spectator: Spectator | None = None,
    compiling: Progress | None = None,
) -> None:
    """Write the mixture, whose source is a GGUF model, calibrated on chunks of tokens of one text.

    An interrupted run is gone on with when the same is asked for again. Raises LocalInferError, and then nothing is
    left; Unsupported for a model that cannot run, NotEnoughMemory.
    """
    source = mixture.source
    out = out.resolve() if out.is_symlink() else out
    [output] = outputs_of(source, out, mixture.types, mixture.fields, keep_split=False)
    refuse_sources(source, out)
    require_free_name(out, replace)
    with threadpool_limits(1, "blas"), engine_for(source.files[0], chunks, threads, compiling) as exact:
        require_memory(exact, chunks)
        identity = identity_of(source.files, output, chunks)
        with unfinished(out, output.layout.size, identity, replace=replace) as file:
            _Walk(mixture, output, exact, file, chunks, threads, spectator or Spectator()).go(compiling)


@contextmanager
def engine_for(path: Path, chunks: Chunks, threads: int, compiling: Progress | None) -> Iterator[Engine]:
    """An engine for chunks of this size, each of which it reads at once."""
    size = chunks.shape[1]
    options = Options(threads=threads, threads_batch=threads, ctx_size=size, batch_size=size, ubatch_size=size)
    with closing(Engine(open_gguf(path), options, compiling)) as engine:
        yield engine


def require_memory(engine: Engine, chunks: Chunks) -> None:
    """Raise NotEnoughMemory before hours of work."""
    products = [each for each in engine.plan.products if each.weight.name not in (OUTPUT, TABLE) and each.runs is None]
    widths = {(product.stage, product.x.n) for product in products}
    squares = sum(n * n for _, n in widths) // engine.program.recorder.block_count
    needed = 4 * (chunks.size * engine.program.recorder.embedding_length + squares)
    available = machine.available_memory()
    if needed > available:
        what = f"needs {needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are available"
        raise engine.file.error("calibration", f"{what}; --calibrate-chunks sets fewer", NotEnoughMemory)


def identity_of(files: Iterable[Path], output: Output, chunks: Chunks) -> dict[str, str]:
    """What must be the same in two runs, so that one goes on with the work of the other."""
    states = [(file.resolve(), file.stat()) for file in files]
    return {
        "source": " ".join(f"{file} {status.st_size} {status.st_mtime_ns}" for file, status in states),
        "choice of types or metadata": hashlib.sha256(output.layout.header).hexdigest(),
        "text": hashlib.sha256(chunks.tobytes()).hexdigest() + f" {len(chunks)}",
        "version of localinfer": VERSION,
    }


class _Walk:
    """One run through all blocks that are not finished.

    The table of tokens is written before the blocks, which need it. Where it is the output matrix, too, it is written
    once more behind them, when what it is multiplied with has been seen.
    """

    def __init__(
        self,
        mixture: Mixture,
        output: Output,
        exact: Engine,
        file: Unfinished,
        chunks: Chunks,
        threads: int,
        spectator: Spectator,
    ) -> None:
        self._source, self._types = mixture.source, mixture.types
        self._output, self._exact, self._file, self._chunks = output, exact, file, chunks
        self._threads, self._spectator = threads, spectator
        self._blocks = exact.program.recorder.block_count
        self._head = self._name_of_head()
        self._whole = self._cost_of_all()
        self._spent = 0.0

    def go(self, compiling: Progress | None) -> None:
        """Write what is missing."""
        self._spectator.begun(self._file.done, self._blocks, self._file.discarded)
        assuming = encoders("normal", with_assumed(self._source, {}, "normal"))
        if not self._file.done:
            self._file.file.write_at(0, self._output.layout.header)
            self._write(self._outside(), assuming)
        if self._head == TABLE and self._file.done in (0, self._blocks):  # or else it is there, and is what it was
            self._write(self._tensors_of(None), assuming, Spectator())
        with engine_for(self._file.file.temporary, self._chunks, self._threads, compiling) as rounded:
            states = np.empty((*self._chunks.shape, rounded.program.recorder.embedding_length), np.float32)
            for x, chunk in zip(states, self._chunks, strict=True):
                x[:] = Probe(rounded).embedded(chunk)
            for number in range(self._blocks):
                if number >= self._file.done:
                    self._do_block(number, states)
                    rounded.file.accept_changes()
                    self._file.keep(number + 1)
                    self._spectator.kept(number + 1)
                else:
                    self._spent += self._cost_of_block(number)
                self._pass_on(rounded, number, states)
        self._do_head(states)

    # --- a block ---

    def _do_block(self, number: int, states: Floats) -> None:
        """See what goes into the matrices of a block, and write them, and what else is in it."""
        where = f"layer {number + 1} of {self._blocks}"
        found = self._collected(f"{where}: reading", number, states)
        met = {name for names in found for name in names}
        self._write([each for each in self._tensors_of(number) if each.name not in met], encoders("normal", {}))
        for names in list(found):
            self._encode(where, names, found.pop(names))

    def _do_head(self, states: Floats) -> None:
        """The output matrix, where there is one."""
        if self._head:
            found = self._collected("output layer: reading", None, states)
            for names in list(found):
                self._encode("output layer", names, found.pop(names))

    def _collected(self, what: str, number: int | None, states: Floats) -> Found:
        """What a block's matrices, or the output layer's, are multiplied with."""
        found: Found = {}
        cost = self._cost_of_reading(number)
        for x in states:
            self._tell(what)
            probe = Probe(self._exact)
            given = probe.inputs_of_head(x) if number is None else probe.inputs_of_block(number, x)
            self._add(found, given, len(x))
            self._spent += cost
        for names, inputs in found.items():
            if not np.isfinite(inputs.squares).all():
                raise self._exact.file.error(f"tensor {names[0]}", "is multiplied with numbers that are not finite")
        return found

    def _add(self, found: Found, given: Iterable[Given], tokens: int) -> None:
        for each in given:
            n, covariance = each.x.shape[1], any(map(self._gets_feedback, each.names))
            if each.names not in found and each.expert is None:
                found[each.names] = Inputs.of(n, covariance=covariance)
            elif each.names not in found:
                found[each.names] = ExpertInputs.of(each.weights[0].shape[0], n)
            inputs = found[each.names]
            if isinstance(inputs, ExpertInputs):
                inputs.add(each.expert or 0, each.x)
            else:
                inputs.add(each.x, tokens, self._threads)

    def _encode(self, where: str, names: tuple[str, ...], inputs: Inputs | ExpertInputs) -> None:
        """Write matrices that share an input."""
        self._tell(f"{where}: {', '.join(name.split('.')[-2] for name in names)}")
        covariance = inputs.covariance
        triangle = checked_triangle(names[0], covariance, self._threads) if covariance else None
        importance = dict.fromkeys(names, inputs.means)
        tensors = [self._source.tensors[name] for name in names]
        self._write(tensors, feedback_encoders(importance, lambda _: triangle))
        self._spent += sum(map(self._cost_of_encoding, tensors))

    def _write(
        self, tensors: Iterable[SourceTensor], encoder_of: EncoderOf, spectator: Spectator | None = None
    ) -> None:
        """Encode tensors and write them where they belong, and wait until that is done."""
        told = (spectator or self._spectator).tensor
        with Crew(self._threads) as crew:
            for tensor in tensors:
                number, place = self._types[tensor.name], self._output.layout.places[tensor.name]
                job = Job(self._source, tensor, number, self._file.file, place, None)
                give(crew, job, encoder_of, ROWS, told)

    def _pass_on(self, rounded: Engine, number: int, states: Floats) -> None:
        """Have the residual streams go through a finished block."""
        cost = self._cost_of_running(number)
        for x in states if cost else ():
            self._tell(f"layer {number + 1} of {self._blocks}: running")
            Probe(rounded).run_block(number, x)
            self._spent += cost

    # --- which tensors ---

    def _tensors_of(self, number: int | None) -> list[SourceTensor]:
        """Of a block, or of the output layer."""
        if number is None:
            return [self._source.tensors[self._head]] if self._head else []
        return [tensor for name, tensor in self._source.tensors.items() if name.startswith(f"blk.{number}.")]

    def _outside(self) -> list[SourceTensor]:
        """What belongs to no block: the engine of the new file needs it to begin with."""
        inside = {each.name for each in chain.from_iterable(map(self._tensors_of, (*range(self._blocks), None)))}
        return [tensor for name, tensor in self._source.tensors.items() if name not in inside]

    def _name_of_head(self) -> str | None:
        """The output matrix; a table of tokens used as one, if its codes depend on what it is multiplied with."""
        multiplied = {product.weight.name for product in self._exact.plan.products}
        if OUTPUT in multiplied:
            return OUTPUT
        return TABLE if TABLE in multiplied and self._gets_feedback(TABLE) else None

    def _gets_feedback(self, name: str) -> bool:
        tensor, number = self._source.tensors[name], self._types[name]
        return number != tensor.type and len(tensor.shape) == 2 and takes_feedback(number)

    # --- how much work that is, in multiplications ---

    def _tell(self, what: str) -> None:
        self._spectator.step(what, self._spent / self._whole)

    def _cost_of_all(self) -> float:
        running = sum(map(self._cost_of_running, range(self._blocks)))
        return sum(map(self._cost_of_block, (*range(self._blocks), None))) + len(self._chunks) * running

    def _cost_of_block(self, number: int | None) -> float:
        encoding = sum(map(self._cost_of_encoding, self._tensors_of(number)))
        return len(self._chunks) * self._cost_of_reading(number) + encoding

    def _cost_of_reading(self, number: int | None) -> float:
        """Of a chunk: the products of the source, and those of its inputs with each other."""
        matrices = [tensor for tensor in self._tensors_of(number) if len(tensor.shape) == 2]
        squares = sum(n * n for n in {tensor.shape[-1] for tensor in matrices})
        products = 0 if number is None else sum(tensor.n_elements for tensor in matrices)
        return float(self._chunks.shape[1] * (products + squares))

    def _cost_of_running(self, number: int) -> float:
        """Of a chunk; none where nobody asks what comes of it."""
        if number + 1 == self._blocks and not self._head:
            return 0.0
        return RUN * float(self._chunks.shape[1] * sum(tensor.n_elements for tensor in self._tensors_of(number)))

    def _cost_of_encoding(self, tensor: SourceTensor) -> float:
        number = self._types[tensor.name]
        if number == tensor.type:
            return 0.0
        passes = 0.5 + REVISIONS * rounds_columns(number) if self._gets_feedback(tensor.name) else 0.0
        return tensor.n_elements * (SEARCH + passes * tensor.shape[-1])
