"""Compares the operations of a captured run with the naive forward pass, one after the other.

The architecture file is run with numpy arrays in float64. Each operation gets the inputs that the kernels had, is
computed and compared, and its result is replaced by that of the kernels. So each operation has an error of its own.

How large may it be? Kernels compute with 32-bit floats, and add up in another order than numpy. The same operation is
therefore computed in numpy with 32-bit floats, too: its difference from float64 is what 32-bit floats cost here, for
these values. A sum of n numbers has an error of at most n units in the last place and typically of sqrt(n), whatever
the order (Higham, Accuracy and Stability of Numerical Algorithms, 2002, sections 4.2 and 4.5); `MARGIN` allows for it.
The rounding of activations is part of the reference (`rounded_weights`), that of cached keys and values is checked, and
ties that may be rounded to either side are allowed for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer.architectures import BuildFunction
from localinfer.evaluation.verification.cached_heads import HALF
from localinfer.evaluation.verification.captured_run import CapturedOperation, CapturedRun
from localinfer.evaluation.verification.guided_builder import GuidedBuilder
from localinfer.evaluation.verification.names import OperationNames, kind_of
from localinfer.evaluation.verification.rounded_weights import RoundedModel, Rounding
from localinfer.gguf.reader import GGUF
from localinfer.graph.properties.adapters import Adapters
from localinfer.graph.recording.operation_log import leaves
from localinfer.naive.formulas import Floats
from quant.matmul.layout import MAX_QUANT

Points = dict[str, Floats]

MATRIX_OPERATIONS = {"matmul", "slices", "per_head.matmul", "embeddings.tokens"}
# Operations that round inputs of matrices in memory that is not read.
ROUNDING = {"experts.apply", "per_head.matmul", "cross_layer.altup", "altup.merge"}

MARGIN = 16.0  # times the error of numpy's 32-bit floats
TIES = 3.0  # times the effect of all ties that are rounded to the other side
TANH = 2e-7
LAST_BITS = 2.0**-20  # of a row's largest value: eight units in the last place
# The root mean square error of 32 rounded values, relative to the largest one, by passes: half a step, as the scale is
# a least-squares fit. For one pass, the largest integer may be 125.
ROUNDED = {1: 0.5 / 125 * 1.001, 2: 0.5 / MAX_QUANT[2] * 1.001}


@dataclass(frozen=True)
class OperationCheck:
    """What was found for an operation.

    `error` is the difference from the reference, and `allowed` its limit, for the value where their ratio is largest.
    Both are relative to the largest value of its row. `type` is the tensor type of a matrix, `shape` the result's.
    """

    name: str
    operation: str
    type: str
    shape: tuple[int, ...]
    error: float
    allowed: float

    @property
    def is_ok(self) -> bool:
        """Whether the error is allowed."""
        return self.error <= self.allowed

    @property
    def ratio(self) -> float:
        """The error relative to what is allowed."""
        return self.error / self.allowed if self.allowed else float("inf") if self.error else 0.0


class Verifier:
    """Checks the operations of a run of a model: `checks` are those found so far.

    `on_operation` is called with the work of each operation that is checked.
    """

    def __init__(
        self, f: GGUF, run: CapturedRun, on_operation: Callable[[int], None], adapters: Adapters | None = None
    ) -> None:
        self.run, self.passes, self._on_operation = run, run.passes, on_operation
        self.checks: list[OperationCheck] = []
        passes = run.passes
        decoded: dict[tuple[str, int, int], NDArray[np.float32]] = {}
        models = (
            RoundedModel(f, passes, decoded=decoded),
            RoundedModel(f, passes, np.float32, decoded=decoded),
            RoundedModel(f, passes, rounding=Rounding.FLIPPED, decoded=decoded),
        )
        for model in models:
            model.ctx_size = run.n_ctx
            model.batch_ends = np.cumsum(run.batches)[:-1].tolist()
            model.anchored = True  # the keys of caches that are
            if adapters:
                model.use_adapters(adapters)
        self._model, self._depth, self._names = models[0], 0, OperationNames()
        self._exact = GuidedBuilder(models[0], run, self._check)
        self._single, self._flipped = (GuidedBuilder(model, run) for model in models[1:])
        self._models, self._variants = models, (self._single, self._flipped)
        for variant in self._variants:
            variant.properties = self._exact.properties  # which say whether norms are LayerNorms

    @property
    def weights_not_finite(self) -> Sequence[str]:
        """The tensors that have NaN or infinite values."""
        return list(dict.fromkeys(name for model in self._models for name in model.not_finite))

    def verify(self, build: BuildFunction) -> Sequence[OperationCheck]:
        """Check all operations, which `build` computes."""
        build(self._exact)
        return self.checks

    # --- an operation ---

    def _check(self, captured: CapturedOperation, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        """Compute and check an operation. Return its result, with what the kernels computed."""
        self._depth += 1
        name = self._names.name(captured.path, arguments)
        given = [*leaves((arguments, tuple(keywords.values())), np.ndarray)]
        before = [each.copy() for each in given]
        others = []
        for variant in self._variants if captured.path in ROUNDING else self._variants[:1]:
            own_arguments, own_keywords = convert((tuple(arguments), keywords), variant.model.dtype)
            result, own = variant.compute(captured, own_arguments, own_keywords)
            own_given = leaves((own_arguments, tuple(own_keywords.values())), np.ndarray)
            others.append((outputs(result, [*own_given], variant), own))
        result, own = self._exact.compute(captured, arguments, keywords)
        self._check_rounding(captured, before)
        if len(others) == 1:
            others.append((outputs(result, given, self._exact), own))
        self._check_points(own, *(of_variant for _, of_variant in others))
        for key, (values, actual) in self._pairs(captured, result, given, before).items():
            single, flipped = (each[key] for each, _ in others)
            allowed = tolerance(values, single, flipped) + error_of_function(captured.path, arguments)
            self._add(name, captured.path, values, actual, allowed)
            values[:] = actual.reshape(values.shape)
        for builder in (self._exact, *self._variants):
            builder.load_streams(captured)
        self._on_operation(captured.work)
        self._depth -= 1
        if not self._depth:
            for model in self._models:
                model.forget_matrices()
        return result

    def _pairs(
        self, captured: CapturedOperation, result: Any, given: Sequence[Floats], before: Sequence[Floats]
    ) -> dict[tuple[str, int], tuple[Floats, Floats]]:
        """Return what the operation computed and what the kernels did, by the kind and number of the output."""
        pairs = {}
        values = outputs(result, given, self._exact)
        for number, actual in enumerate(captured.results):
            pairs["result", number] = values["result", number], actual
        results = [*leaves(result, np.ndarray)]
        for number, actual in captured.changed.items():
            is_result = any(given[number] is each for each in results)
            if not is_result and not np.array_equal(given[number], before[number], equal_nan=True):
                pairs["argument", number] = given[number], actual
        if captured.streams:
            number = int(captured.path == "altup.predict")  # the only operation that computes the predicted streams
            pairs["stream", number] = values["stream", number], captured.streams[number]
        return pairs

    def _check_rounding(self, captured: CapturedOperation, given: Sequence[Floats]) -> None:
        """Check the rounding of the inputs of matrices."""
        for name, rounded in captured.rounded.items():
            x = next((each for each in given if each.shape == rounded.shape), None)
            if x is not None and not self._has_bf16(name):
                groups, errors = (each.reshape(len(x), -1, 32) for each in (x, rounded - x))
                peaks = np.maximum(np.abs(groups).max(axis=2), np.finfo(np.float32).tiny)
                relative = np.sqrt((errors**2).mean(axis=2)) / peaks
                limit = np.full(relative.shape, ROUNDED[self.passes])
                self._add(f"{name}.quantized", "quantize", np.zeros_like(relative), relative, limit)

    def _has_bf16(self, name: str) -> bool:
        return self._model.file.tensors[f"{name}.weight"].type_name == "BF16"

    def _check_points(self, own: Points, of_single: Points, of_flipped: Points) -> None:
        """Check what is captured within the operation: points, and the KV cache."""
        run = self.run
        for name, values in own.items():
            single, flipped = of_single[name], of_flipped[name]
            if name.endswith("ffn_expert_ids"):
                self._add(name, "route", values, self._exact.chosen[name], tolerance(values, single, flipped))
            elif name.endswith(("_k_cache", "_v_cache", "_k_anchor")):
                cached = (run.values if name.endswith("_v_cache") else run.keys)[int(name.split(".")[1])]
                is_anchor = name.endswith("_k_anchor")
                rounding = HALF[0] * np.abs(values) + HALF[1] if is_anchor else cached.rounding(values)
                actual = cached.anchors if is_anchor else cached.stored
                assert actual is not None
                self._add(name, "cache", values, actual, tolerance(values, single, flipped) + rounding)
            else:
                operation = "rope" if name.endswith("_rope") else "state" if name.endswith("_state") else "route"
                self._add(name, operation, values, run.points[name], tolerance(values, single, flipped))

    # --- results ---

    def _add(self, name: str, operation: str, expected: Floats, actual: NDArray[Any], allowed: Floats) -> None:
        """Add the check of an output."""
        shape = actual.shape
        expected, allowed = expected.reshape(shape), np.broadcast_to(allowed.reshape(shape), shape)
        with np.errstate(all="ignore"):
            error = np.abs(actual.astype(np.float64) - expected)
            error = np.where(np.isnan(error), np.where(np.isnan(actual) & np.isnan(expected), 0, np.inf), error)
            ratio = np.where(error > 0, error / np.maximum(allowed, np.finfo(np.float64).tiny), 0)
        worst = np.unravel_index(ratio.argmax(), shape)
        row = np.abs(expected[worst[:-1]]).max()
        size = float(row) if np.isfinite(row) and row > 0 else 1.0
        tensor = self._model.file.tensors.get(f"{name}.weight")
        kind = tensor.type_name if tensor and operation in MATRIX_OPERATIONS else ""
        found = float(error[worst]) / size, float(allowed[worst]) / size
        self.checks.append(OperationCheck(name, kind_of(operation), kind, shape, *found))


def outputs(result: Any, given: Sequence[Floats], builder: GuidedBuilder) -> dict[tuple[str, int], Floats]:
    """Return everything that an operation may have computed: its results, its arguments and the residual streams."""
    found = {("result", number): each for number, each in enumerate(leaves(result, np.ndarray))}
    found |= {("argument", number): each for number, each in enumerate(given)}
    if builder.streams is not None:
        found |= {("stream", 0): builder.streams.streams, ("stream", 1): builder.streams.predicted}
    return found


def convert(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return copies of the arrays in arguments as another dtype."""
    if isinstance(value, np.ndarray):
        return value.astype(dtype)
    if isinstance(value, dict):
        return {name: convert(each, dtype) for name, each in value.items()}
    if isinstance(value, tuple):
        converted = [convert(each, dtype) for each in value]
        return type(value)(*converted) if hasattr(value, "_fields") else tuple(converted)
    return value


def error_of_function(path: str, arguments: Sequence[Any]) -> float:
    """Return the documented error of a function that is less accurate than numpy's: tanh
    (`localinfer.kernels.exponentials`), which has an absolute one."""
    return TANH * float(arguments[2]) if path == "soft_cap" else 0.0


def tolerance(values: Floats, single: Floats, flipped: Floats) -> Floats:
    """Return the largest error that is allowed, for each value of a row the same: (..., 1) for values (..., n)."""

    def largest(x: Floats) -> Floats:
        magnitudes: Floats = np.abs(x).max(axis=-1, keepdims=True, initial=0.0)
        return magnitudes

    with np.errstate(all="ignore"):
        size, cost = largest(values), largest(single.astype(np.float64) - values)
        typical = float(np.median(cost / np.where(size > 0, size, 1))) * size
        limit = MARGIN * np.maximum(cost, typical) + TIES * largest(flipped - values) + LAST_BITS * size
    allowed: Floats = np.broadcast_to(np.where(np.isnan(limit), np.inf, limit), values.shape)
    return allowed
