"""The sensitivity of a model to the quantization of each of its tensors.

    found = measure_sensitivity(plan, chunks, threads=2)
    found["blk.0.ffn_up.weight"].divergence["Q6_K"]     # nats per token, if only this tensor is quantized

For each tensor, the KL divergence of the whole model from itself with only this tensor quantized is measured on a text,
in REFERENCE_TYPE; for the token embeddings and the output matrix, which are a large part of small models, in
LARGE_TENSOR_TYPES. `localinfer.lab.tensor_sensitivity` derives the other types.
"""

import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from threadpoolctl import threadpool_limits

from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.evaluation.perplexity import Mean
from localinfer.gguf.mapped_file import PrivateFile
from localinfer.gguf.reader import open_gguf
from localinfer.gguf.source import Source
from localinfer.lab.divergence import DivergenceMeter
from localinfer.lab.errors import TensorErrors
from localinfer.lab.exchange import WeightExchange
from localinfer.lab.tensor_sensitivity import (
    TensorSensitivity,
    derive_divergences,
    with_unused_tensors,
)
from localinfer.options import Options
from localinfer.quantization.budget import candidates_for
from localinfer.quantization.plan import QuantizationPlan
from localinfer.quantization.quantize import compile_kernels, make_encoder_factory
from localinfer.quantization.recipe_rules import EMBEDDINGS
from localinfer.quantization.recipes import FLOATS, is_quantizable, layer_of
from localinfer.quantization.tied_output_importance import with_tied_output_importance
from localinfer.runtime.engine import Engine
from localinfer.tokenizer.chunks import Chunks
from quant import ggml
from quant.jit.loader import Progress

OUTPUT = "output.weight"
LARGE_TENSORS = (OUTPUT, *EMBEDDINGS)
REFERENCE_TYPE = "Q4_0"  # fits rows of any multiple of 32
LARGE_TENSOR_TYPES = ("Q3_K", "Q4_0", "Q4_K", "Q5_1", "Q5_K", "Q6_K", "Q8_0")


class SensitivityObserver:
    """Receives the progress of a measurement. The methods do nothing; subclasses override them."""

    def on_estimate(self, tensors: int, seconds: float) -> None:
        """Called before the first of so many tensors, with the estimated time for all of them."""

    def on_progress(self, what: str, fraction: float) -> None:
        """Called often, with the present tensor and the finished fraction of the work, 0 to 1."""

    def on_tensor(self, found: TensorSensitivity) -> None:
        """Called when a tensor is measured."""


def measure_sensitivity(
    plan: QuantizationPlan,
    chunks: Chunks,
    *,
    effort: str = "normal",
    threads: int = 1,
    known: Mapping[str, TensorSensitivity] | None = None,
    observer: SensitivityObserver | None = None,
    compiling: Progress | None = None,
) -> dict[str, TensorSensitivity]:
    """Return the sensitivity to the tensors of a plan, whose source is a GGUF file, on chunks of tokens.

    The types of the plan are ignored; its importance matrix guides the encoders. Tensors that are `known` from an
    interrupted run are not measured again. Raises UsageError for a source that is quantized, LocalInferError for one
    that is damaged, UnsupportedError for a model that cannot run, and NotEnoughMemoryError.
    """
    with SensitivityMeasurement(plan, chunks, effort, threads, compiling) as measurement:
        return measurement.run(known or {}, observer or SensitivityObserver())


class SensitivityMeasurement:
    """The measurement of `measure_sensitivity`, which can also measure whole choices of types. A context manager."""

    def __init__(
        self, plan: QuantizationPlan, chunks: Chunks, effort: str, threads: int, compiling: Progress | None = None
    ) -> None:
        self._source, self._threads = plan.source, threads
        self.candidates = measurable_types(plan)
        numbers = {ggml.TYPE_NUMBERS[kind] for kinds in self.candidates.values() for kind in kinds}
        compile_kernels(plan.old_types, numbers, effort, compiling, low_rank=bool(plan.components))
        self._importance = with_tied_output_importance(plan.source, plan.importance, effort)
        self._encoder_factory = make_encoder_factory(effort, self._importance, plan.components)
        f, size = open_gguf(plan.source.files[0], PrivateFile), chunks.shape[1]
        self._exchange = WeightExchange(f, plan.source, self._encoder_factory, threads)
        options = Options(
            threads=threads, threads_batch=threads, ctx_size=size, batch_size=size, ubatch_size=size, tune=False
        )
        self._engine = Engine.load(f, options, compiling)
        try:
            begin = time.monotonic()
            self._meter = DivergenceMeter(self._engine, chunks)
            self._cost = CostModel(plan.source, self._meter)
            self._rate = (time.monotonic() - begin) / self._cost.of_whole
        except BaseException:
            self._engine.close()
            raise

    def __enter__(self) -> "SensitivityMeasurement":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.close()

    def divergence_of(self, types: Mapping[str, str]) -> Mean:
        """Return the divergence in nats per token if these tensors are quantized to these types, by name."""
        changed = {
            name: ggml.TYPE_NUMBERS[kind]
            for name, kind in types.items()
            if kind != self._source.tensors[name].type_name
        }
        with self._exchange.quantized(changed):
            return self._meter.divergence(whole=True)

    def run(
        self, known: Mapping[str, TensorSensitivity], observer: SensitivityObserver
    ) -> dict[str, TensorSensitivity]:
        """Return the sensitivity to every tensor. Call it once."""
        todo = [name for name in self.candidates if name not in known]
        costs = {name: len(self._direct_types(name)) * self._cost.of(self._block_of(name)) for name in todo}
        observer.on_estimate(len(todo), self._rate * sum(costs.values()))
        found, done = dict(known), 0.0

        def measure(names: Sequence[str]) -> None:
            nonlocal done
            errors = self._errors(names)
            for name in names:
                observer.on_progress(name, done / sum(costs.values()))
                found[name] = self._measure(name, errors[name])
                done += costs[name]
                observer.on_tensor(found[name])

        measure([name for name in todo if self._block_of(name) is None])
        for block in range(self._meter.n_blocks):
            measure([name for name in todo if self._block_of(name) == block])
            if self._meter.by_block:
                self._meter.advance()
        measure([name for name in todo if self._block_of(name) == self._meter.n_blocks])
        return with_unused_tensors({name: found[name] for name in self.candidates})

    def _measure(self, name: str, errors: TensorErrors) -> TensorSensitivity:
        measured: dict[str, Mean] = {}
        for kind in self._direct_types(name):
            with self._exchange.quantized({name: ggml.TYPE_NUMBERS[kind]}):
                measured[kind] = self._meter.divergence(whole=self._block_of(name) is None)
        weights, outputs = ({ggml.TYPES[each].name: error for each, error in by_number.items()}
                            for by_number in (errors.of_weights(), errors.of_outputs()))  # fmt: skip
        divergences = derive_divergences({kind: max(0.0, mean.value) for kind, mean in measured.items()}, outputs)
        return TensorSensitivity(
            name, weights, outputs, divergences, {kind: mean.error for kind, mean in measured.items()}
        )

    def _errors(self, names: Sequence[str]) -> dict[str, TensorErrors]:
        """Return the errors of tensors of the present block, for the inputs that they have."""
        if not names:
            return {}
        found = {
            name: TensorErrors(
                self._source, self._source.tensors[name], [ggml.TYPE_NUMBERS[kind] for kind in self.candidates[name]],
                self._encoder_factory, self._importance.get(name),
            )
            for name in names
        }  # fmt: skip
        with threadpool_limits(1, "blas"):  # for sums that are the same for any number of threads
            for given in self._meter.inputs(output_layer=self._block_of(names[0]) in (None, self._meter.n_blocks)):
                for name in given.names:
                    if name in found:
                        found[name].add_inputs(given.x, given.expert or 0)
        return found

    def _block_of(self, name: str) -> int | None:
        """Return the block after whose start a tensor is used; None if it may be used before."""
        if name == OUTPUT:
            return self._meter.n_blocks
        number = layer_of(name, -1)
        return number if 0 <= number < self._meter.n_blocks else None

    def _direct_types(self, name: str) -> list[str]:
        """Return the types whose divergence is measured."""
        wanted = LARGE_TENSOR_TYPES if name in LARGE_TENSORS else (REFERENCE_TYPE,)
        return [kind for kind in wanted if kind in self.candidates[name]] or self.candidates[name][:1]


class CostModel:
    """The cost of evaluations, in multiplications."""

    def __init__(self, source: Source, meter: DivergenceMeter) -> None:
        chunks, tokens = meter.chunks.shape
        blocks = [0] * meter.n_blocks
        for name, tensor in source.tensors.items():
            if 0 <= layer_of(name, -1) < meter.n_blocks:
                blocks[layer_of(name, -1)] += tensor.n_elements
        output = source.tensors[OUTPUT if OUTPUT in source.tensors else EMBEDDINGS[0]].n_elements
        self._from: list[int] = [
            int(chunks * (tokens * sum(blocks[first:]) + tokens // 2 * output)) for first in range(len(blocks) + 1)
        ]
        self.of_whole = self._from[0]

    def of(self, block: int | None) -> int:
        """Return the cost of an evaluation from a block on, or of a whole one."""
        return self.of_whole if block is None else self._from[block]


def measurable_types(plan: QuantizationPlan) -> dict[str, list[str]]:
    """Return the types, smallest first, that each quantizable tensor of a plan may get instead of its own.

    Raises UsageError for a source that is quantized.
    """
    found = {}
    for name, tensor in plan.source.tensors.items():
        if is_quantizable(tensor) and len(kinds := candidates_for(tensor, name in plan.importance)) > 1:
            if tensor.type_name not in FLOATS:
                problem = f"{printable(name, 80)}: is {tensor.type_name}; the source must be {', '.join(FLOATS)}"
                raise UsageError(f"{printable(str(plan.source.path))}: {problem}")
            found[name] = kinds[:-1]
    return found
