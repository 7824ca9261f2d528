"""The sensitivity of a model to the quantization of each of its tensors.

    found = measure_sensitivity(plan, chunks, threads=2)
    found["blk.0.ffn_up.weight"].divergences["Q6_K"]    # nats per token, if only this tensor is quantized

For each tensor, the KL divergence of the whole model from itself with only this tensor quantized is measured on a text,
in REFERENCE_TYPE; for the token embeddings and the output matrix, which are a large part of small models, in
LARGE_TENSOR_TYPES. `localinfer.lab.tensor_sensitivity` derives the other types.
"""

import time
from collections.abc import Mapping, Sequence
from itertools import chain
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
from localinfer.quantization.report import BLOCK
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
    layers_at_once: int = 1,
    known: Mapping[str, TensorSensitivity] | None = None,
    observer: SensitivityObserver | None = None,
    compiling: Progress | None = None,
) -> dict[str, TensorSensitivity]:
    """Return the sensitivity to the tensors of a plan, whose source is a GGUF file, on chunks of tokens.

    The types of the plan are ignored; its importance matrix guides the encoders. Tensors of the same kind in
    `layers_at_once` successive layers are measured together, which takes less time and tells these layers apart by
    their errors only. Tensors that are `known` from an interrupted run are not measured again.

    Raises UsageError for a source that is quantized, LocalInferError for one that is damaged, UnsupportedError for a
    model that cannot run, and NotEnoughMemoryError.
    """
    with SensitivityMeasurement(
        plan, chunks, effort=effort, threads=threads, layers_at_once=layers_at_once, compiling=compiling
    ) as measurement:
        return measurement.run(known or {}, observer or SensitivityObserver())


class SensitivityMeasurement:
    """The measurement of `measure_sensitivity`, which can also measure whole choices of types. A context manager."""

    def __init__(
        self,
        plan: QuantizationPlan,
        chunks: Chunks,
        *,
        effort: str = "normal",
        threads: int = 1,
        layers_at_once: int = 1,
        compiling: Progress | None = None,
    ) -> None:
        self._source, self._layers = plan.source, layers_at_once
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
        n_blocks, todo = self._meter.n_blocks, [name for name in self.candidates if name not in known]
        outside = [[name] for name in todo if self._block_of(name) is None]
        windows = [range(first, min(first + self._layers, n_blocks)) for first in range(0, n_blocks, self._layers)]
        inside = [self._groups(todo, blocks) for blocks in windows]
        output = [[name] for name in todo if self._block_of(name) == n_blocks]
        progress = _Progress(observer, [self._cost_of(each) for each in [*outside, *chain(*inside), *output]])
        observer.on_estimate(len(todo), self._rate * progress.total)
        found = dict(known)

        def measure(groups: Sequence[Sequence[str]], errors: Mapping[str, TensorErrors]) -> None:
            for names in groups:
                progress.start_group(group_label(names))
                for each in self._measure(names, errors):
                    found[each.name] = each
                    observer.on_tensor(each)

        measure(outside, self._errors([*chain(*outside)]))
        for blocks, groups in zip(windows, inside, strict=True):
            before, errors = self._meter.position(), dict[str, TensorErrors]()
            for block in blocks:
                errors |= self._errors([name for name in chain(*groups) if self._block_of(name) == block])
                self._meter.advance()
            after = self._meter.position()
            self._meter.move(before)
            measure(groups, errors)
            self._meter.move(after)
        measure(output, self._errors([*chain(*output)]))
        return with_unused_tensors({name: found[name] for name in self.candidates})

    def _groups(self, names: Sequence[str], blocks: range) -> list[list[str]]:
        """Return the tensors of the same kind in some blocks, such as all `ffn_up`."""
        groups: dict[str, list[str]] = {}
        for name in names:
            if self._block_of(name) in blocks:
                groups.setdefault(BLOCK.sub("", name), []).append(name)
        return [*groups.values()]

    def _cost_of(self, names: Sequence[str]) -> float:
        return float(len(self._direct_types(names)) * self._cost.of(self._block_of(names[0])))

    def _measure(self, names: Sequence[str], errors: Mapping[str, TensorErrors]) -> list[TensorSensitivity]:
        """Measure tensors together. The divergence is divided in proportion to the errors in their outputs."""
        outputs = {name: by_name(errors[name].of_outputs()) for name in names}
        measured: dict[str, dict[str, Mean]] = {name: {} for name in names}
        for kind in self._direct_types(names):
            with self._exchange.quantized(dict.fromkeys(names, ggml.TYPE_NUMBERS[kind])):
                mean = self._meter.divergence(whole=self._block_of(names[0]) is None)
            total = sum(outputs[name][kind] for name in names)
            for name in names:
                share = outputs[name][kind] / total if total else 1 / len(names)
                measured[name][kind] = Mean(max(0.0, mean.value * share), mean.error * share)
        return [
            TensorSensitivity(
                name, by_name(errors[name].of_weights()), outputs[name],
                derive_divergences({kind: mean.value for kind, mean in measured[name].items()}, outputs[name]),
                {kind: mean.error for kind, mean in measured[name].items()},
            )
            for name in names
        ]  # fmt: skip

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

    def _direct_types(self, names: Sequence[str]) -> list[str]:
        """Return the types whose divergence is measured for tensors of the same kind."""
        wanted = LARGE_TENSOR_TYPES if names[0] in LARGE_TENSORS else (REFERENCE_TYPE,)
        possible = [kind for kind in self.candidates[names[0]] if all(kind in self.candidates[name] for name in names)]
        return [kind for kind in wanted if kind in possible] or possible[:1]


class _Progress:
    """Reports the finished fraction of the cost of all groups, at the start of each of them."""

    def __init__(self, observer: SensitivityObserver, costs: Sequence[float]) -> None:
        self._observer, self._costs, self._started, self.total = observer, costs, 0, sum(costs)

    def start_group(self, label: str) -> None:
        self._observer.on_progress(label, sum(self._costs[: self._started]) / self.total)
        self._started += 1


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


def group_label(names: Sequence[str]) -> str:
    """Return the name of a tensor, or a description of several."""
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def by_name(errors: Mapping[int, float]) -> dict[str, float]:
    """Return the errors of types by their names instead of their numbers."""
    return {ggml.TYPES[number].name: error for number, error in errors.items()}


def measurable_types(plan: QuantizationPlan) -> dict[str, list[str]]:
    """Return the types, smallest first, that each quantizable tensor of a plan may get instead of its own.

    Raises UsageError for a source that is quantized.
    """
    found = {}
    for name, tensor in plan.source.tensors.items():
        if is_quantizable(tensor) and len(kinds := candidates_for(tensor, name in plan.importance)) > 1:
            if tensor.type_name not in FLOATS:
                problem = f"{printable(name, 80)}: is {tensor.type_name}; the source must be F32, F16 or BF16"
                raise UsageError(f"{printable(str(plan.source.path))}: {problem}")
            found[name] = kinds[:-1]
    return found
