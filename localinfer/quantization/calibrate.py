"""Quantization with error feedback (GPTQ), layer by layer, on the inputs of each layer.

    calibrate(plan, out, chunks, threads=2)

Two engines evaluate the chunks of a text in step. The engine of the source model yields the inputs of the matrices of
one block. The matrices are encoded for these inputs (`quant.encoders.feedback`) and written to the output file. Then
the engine of the output file computes the inputs of the next block from what was written. So each block also
compensates for the errors of earlier blocks, as in GPTQ (Frantar et al., 2022). Memory only holds the residual streams
of the chunks and the covariances of one block. Finished blocks survive an interruption.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from localinfer.errors import NotEnoughMemoryError
from localinfer.gguf.atomic_file import require_writable_path
from localinfer.gguf.file_types import SCALE_PAIRS
from localinfer.gguf.reader import open_gguf
from localinfer.gguf.resumable_file import ResumableFile, resumable_file
from localinfer.gguf.source import Field, SourceTensor
from localinfer.graph.scale_pairs import ScalePair
from localinfer.machine import resources
from localinfer.options import Options
from localinfer.quantization.calibrated_tensors import OUTPUT, CalibratedTensors, CalibrationCosts, Chunks
from localinfer.quantization.feedback_encoders import checked_factor, compile_feedback, make_parts_factory
from localinfer.quantization.plan import QuantizationPlan
from localinfer.quantization.quantize import (
    EncoderFactory,
    Output,
    TensorJob,
    compile_kernels,
    make_encoder_factory,
    plan_outputs,
    submit_tensor,
)
from localinfer.quantization.scale_factors import find_factors
from localinfer.quantization.scale_pairs import pair_matrices, pairs_of_plan
from localinfer.quantization.shared_inputs import SharedInputs
from localinfer.quantization.tensor_scales import TensorScales, tensor_scales
from localinfer.quantization.tied_output_importance import TABLE, with_tied_output_importance
from localinfer.quantization.worker_pool import WorkerPool
from localinfer.runtime.attention_inputs import AttentionObserver, value_rows
from localinfer.runtime.engine import Engine
from localinfer.runtime.input_statistics import ExpertInputStatistics, InputStatistics, WeightInputs
from localinfer.runtime.probe import ActivationProbe
from localinfer.version import VERSION
from quant.jit.loader import Progress

Floats = NDArray[np.float32]
Names = tuple[str, ...]  # of matrices that share an input
Statistics = InputStatistics | ExpertInputStatistics
# By the names of matrices, and the rows of these; None: all rows, or those without statistics of their own.
StatisticsByRows = dict[tuple[Names, range | None], Statistics]
InputsByRows = dict[tuple[Names, range | None], SharedInputs]


class CalibrationObserver:
    """Receives the progress of a calibration. The methods do nothing; subclasses override them."""

    def on_start(self, done: int, blocks: int, discarded: str) -> None:
        """Called at the start, when `done` of `blocks` are already finished.

        `discarded` states why an earlier run cannot be resumed.
        """

    def on_step(self, what: str, fraction: float) -> None:
        """Called before each step, with its description and the finished fraction of the work, 0 to 1."""

    def on_tensor(self, tensor: SourceTensor, done: int) -> None:
        """Called when `done` weights of a tensor are encoded."""

    def on_block_saved(self, done: int) -> None:
        """Called when `done` blocks are finished and on disk."""


def calibrate(
    plan: QuantizationPlan,
    out: Path,
    chunks: Chunks,
    *,
    threads: int = 1,
    replace: bool = False,
    observer: CalibrationObserver | None = None,
    compiling: Progress | None = None,
    scale_pairs: bool = False,
) -> None:
    """Write the model of a plan, whose source is a GGUF file, calibrated on chunks of tokens of one text.

    With `scale_pairs`, factors move between weights where this reduces the error (`localinfer.graph.scale_pairs`).
    A call with the same arguments resumes an interrupted run. Raises LocalInferError and then leaves no file behind;
    UnsupportedError for a model that cannot run; NotEnoughMemoryError.
    """
    source = plan.source
    pairs = pairs_of_plan(plan) if scale_pairs else []
    plan = dataclasses.replace(plan, fields={**plan.fields, SCALE_PAIRS: Field.flag(True)}) if pairs else plan
    out = out.resolve() if out.is_symlink() else out
    [output] = plan_outputs(dataclasses.replace(source, fields=plan.fields), out, plan.types, keep_split=False)
    source.require_not_input(out)
    require_writable_path(out, replace)
    compile_kernels(plan.old_types, plan.changed_types, "normal", compiling)
    compile_feedback(plan.changed_types, compiling)
    with threadpool_limits(1, "blas"), open_engine(source.files[0], chunks, threads, compiling) as exact:
        require_memory(exact, chunks)
        identity = run_identity(source.files, output, chunks)
        with resumable_file(out, output.layout.size, identity, replace=replace) as file:
            attention = AttentionObserver(exact, compiling)
            job = CalibrationJob(plan, output, file, chunks, pairs, threads, observer or CalibrationObserver())
            _CalibrationRun(job, attention).run(compiling)


@contextmanager
def open_engine(path: Path, chunks: Chunks, threads: int, compiling: Progress | None) -> Iterator[Engine]:
    """Open an engine that evaluates a whole chunk as one batch."""
    size = chunks.shape[1]
    options = Options(
        threads=threads, threads_batch=threads, ctx_size=size, batch_size=size, ubatch_size=size, tune=False
    )
    with closing(Engine.load(open_gguf(path), options, compiling)) as engine:
        yield engine


def require_memory(engine: Engine, chunks: Chunks) -> None:
    """Raise NotEnoughMemoryError if the residual streams and the covariances of a block do not fit in memory."""
    products = [each for each in engine.graph.products if each.weight.name not in (OUTPUT, TABLE) and each.runs is None]
    widths = {(product.first_op, product.x.n) for product in products}
    model_graph = engine.compiled_graph.model_graph
    counts = {name: rows.covariance_count for name, rows in value_rows(engine).items()}
    used = [count * engine.file.tensors[name].shape[1] ** 2 for name, count in counts.items()]
    squares = (sum(n * n for _, n in widths) + sum(used)) // model_graph.block_count
    needed = 4 * (chunks.size * model_graph.embedding_length + squares)
    available = resources.available_memory()
    if needed > available:
        what = f"needs {needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are available"
        raise engine.file.error("calibration", f"{what}; reduce --calibrate-chunks", NotEnoughMemoryError)


def matrix_name(tensor: str) -> str:
    """Return the name of a matrix in its block."""
    return tensor.split(".")[-2]


def run_identity(files: Iterable[Path], output: Output, chunks: Chunks) -> dict[str, str]:
    """Return what must be equal in two runs for one to resume the other."""
    states = [(file.resolve(), file.stat()) for file in files]
    return {
        "source": " ".join(f"{file} {status.st_size} {status.st_mtime_ns}" for file, status in states),
        "choice of types or metadata": hashlib.sha256(output.layout.header).hexdigest(),
        "text": hashlib.sha256(chunks.tobytes()).hexdigest() + f" {len(chunks)}",
        "version of localinfer": VERSION,
    }


class CalibrationJob(NamedTuple):
    """What a calibration writes, from which text, and between which tensors factors may move."""

    plan: QuantizationPlan
    output: Output
    file: ResumableFile
    chunks: Chunks
    pairs: Sequence[ScalePair]
    threads: int
    observer: CalibrationObserver


class _CalibrationRun:
    """One pass over all blocks that are not finished.

    The token embeddings are written before the blocks, which need them. If they are also the output matrix, they are
    written again after the blocks, when their inputs as output matrix are known.
    """

    def __init__(self, job: CalibrationJob, attention: AttentionObserver) -> None:
        self._source, self._types, self._pairs = job.plan.source, job.plan.types, job.pairs
        self._output, self._file, self._chunks = job.output, job.file, job.chunks
        self._source_engine, self._attention = attention.engine, attention
        self._threads, self._observer = job.threads, job.observer
        self._tensors = CalibratedTensors(job.plan, attention)
        self._costs = CalibrationCosts(self._tensors, job.plan.types, job.chunks, attention)
        self._cost_so_far = 0.0
        self._scales: dict[str, TensorScales] = {}  # of the tensors of the current block

    def run(self, compiling: Progress | None) -> None:
        """Write everything that an earlier run has not written."""
        self._observer.on_start(self._file.steps_done, self._tensors.blocks, self._file.discard_reason)
        encoder_factory = make_encoder_factory("normal", with_tied_output_importance(self._source, {}, "normal"))
        if not self._file.steps_done:
            self._file.file.write_at(0, self._output.layout.header)
            self._write(self._tensors.outside_blocks(), encoder_factory)
        # In between, a tied output matrix is already written and unchanged.
        if self._tensors.output_matrix == TABLE and self._file.steps_done in (0, self._tensors.blocks):
            self._write(self._tensors.of(None), encoder_factory, CalibrationObserver())
        with open_engine(self._file.file.temporary, self._chunks, self._threads, compiling) as rounded:
            states = np.empty((*self._chunks.shape, rounded.compiled_graph.model_graph.embedding_length), np.float32)
            for x, chunk in zip(states, self._chunks, strict=True):
                x[:] = ActivationProbe(rounded).embed(chunk)
            for number in range(self._tensors.blocks):
                if number >= self._file.steps_done:
                    self._quantize_block(number, states)
                    rounded.file.accept_changes()
                    self._file.save_progress(number + 1)
                    self._observer.on_block_saved(number + 1)
                else:
                    self._cost_so_far += self._costs.of_block(number)
                self._run_block(rounded, number, states)
        self._quantize_output_matrix(states)

    # --- a block ---

    def _quantize_block(self, number: int, states: Floats) -> None:
        """Collect the inputs of the matrices of a block, and write its tensors."""
        where = f"layer {number + 1} of {self._tensors.blocks}"
        inputs_by_rows = self._collect_inputs(f"{where}: collecting inputs", number, states)
        measured = {name for names, _ in inputs_by_rows for name in names}
        others = [each for each in self._tensors.of(number) if each.name not in measured]
        self._scales = self._find_scales(where, number, inputs_by_rows)
        self._write(others, make_encoder_factory("normal", {}))
        self._encode_all(where, inputs_by_rows)

    def _quantize_output_matrix(self, states: Floats) -> None:
        """Write the output matrix, if there is one."""
        if self._tensors.output_matrix:
            inputs_by_rows = self._collect_inputs("output layer: collecting inputs", None, states)
            self._scales = {}
            self._encode_all("output layer", inputs_by_rows)

    def _find_scales(self, where: str, number: int, inputs: InputsByRows) -> dict[str, TensorScales]:
        """Return the scales of the tensors of a block. The inputs are left divided by them."""
        found = []
        for pair in self._pairs:
            if pair.block == number:
                self._report(f"{where}: scales of the inputs of {', '.join(map(matrix_name, pair.products))}")
                matrices = pair_matrices(self._source, self._types, pair, inputs)
                factors = find_factors(pair, matrices, self._threads)
                found += [(pair, factors)] if factors is not None else []
        return tensor_scales(self._source.tensors, found)

    def _collect_inputs(self, what: str, number: int | None, states: Floats) -> InputsByRows:
        """Return the inputs of a block's matrices, or of the output layer's if `number` is None."""
        statistics: StatisticsByRows = {}
        cost = self._costs.of_reading(number)
        for x in states:
            self._report(what)
            probe = ActivationProbe(self._source_engine, self._attention)
            given = probe.output_layer_inputs(x) if number is None else probe.block_inputs(number, x)
            self._add_inputs(statistics, given, len(x))
            self._cost_so_far += cost
        for (names, _), inputs in statistics.items():
            if not np.isfinite(inputs.square_sums).all():
                raise self._source_engine.file.error(f"tensor {names[0]}", "has inputs that are not finite")
        return {key: self._shared_inputs(key[0], inputs) for key, inputs in statistics.items()}

    def _shared_inputs(self, names: Names, inputs: Statistics) -> SharedInputs:
        """Return the inputs with these statistics, whose covariance is overwritten."""
        factor = checked_factor(names[0], inputs.covariance, self._threads) if inputs.covariance else None
        return SharedInputs(names, inputs.mean_squares, None, factor)

    def _add_inputs(self, statistics: StatisticsByRows, given: Iterable[WeightInputs], tokens: int) -> None:
        for each in given:
            n, key = each.x.shape[1], (each.names, each.rows)
            covariance = any(map(self._tensors.gets_feedback, each.names))
            if key not in statistics and each.expert is None:
                statistics[key] = InputStatistics.empty(n, covariance=covariance)
            elif key not in statistics:
                statistics[key] = ExpertInputStatistics.empty(each.weights[0].shape[0], n)
            inputs = statistics[key]
            if isinstance(inputs, ExpertInputStatistics):
                inputs.add(each.expert or 0, each.x)
            else:
                inputs.add(each.x, tokens, self._threads)

    def _encode_all(self, where: str, inputs_by_rows: InputsByRows) -> None:
        """Encode and write matrices, those that share an input together. Their inputs are freed one by one."""
        for names in dict.fromkeys(names for names, _ in inputs_by_rows):
            self._report(f"{where}: {', '.join(map(matrix_name, names))}")
            parts = [rows for others, rows in inputs_by_rows if others == names]
            factories = {rows: inputs_by_rows.pop((names, rows)).encoder_factory for rows in parts}
            tensors = [self._source.tensors[name] for name in names]
            whole = factories.get(None) if len(parts) == 1 else None
            self._write(tensors, whole or make_parts_factory(factories, tensors[0].shape[0]))
            self._cost_so_far += sum(map(self._costs.of_encoding, tensors))

    def _write(
        self,
        tensors: Iterable[SourceTensor],
        encoder_factory: EncoderFactory,
        observer: CalibrationObserver | None = None,
    ) -> None:
        """Encode tensors, write them at their offsets, and wait for completion."""
        on_tensor = (observer or self._observer).on_tensor
        with WorkerPool(self._threads) as pool:
            for tensor in tensors:
                number, offset = self._types[tensor.name], self._output.layout.offsets[tensor.name]
                scales = self._scales.get(tensor.name)
                job = TensorJob(self._source, tensor, number, self._file.file, offset, None, scales)
                submit_tensor(pool, job, encoder_factory, on_tensor)

    def _run_block(self, rounded: Engine, number: int, states: Floats) -> None:
        """Propagate the residual streams through a finished block."""
        cost = self._costs.of_running(number)
        for x in states if cost else ():
            self._report(f"layer {number + 1} of {self._tensors.blocks}: evaluating")
            ActivationProbe(rounded).run_block(number, x)
            self._cost_so_far += cost

    def _report(self, what: str) -> None:
        self._observer.on_step(what, self._cost_so_far / self._costs.total)
