"""Compares the operations of a captured run with the naive forward pass, one after the other.

The architecture file is run with numpy arrays in float64. Each operation gets the inputs that the kernels had, is
computed and compared, and its result is replaced by that of the kernels. So each operation has an error of its own.

How large an error may be follows from 32-bit floats (`operation_check`). The rounding of activations is part of the
reference (`rounded_weights`), that of cached keys and values is checked, and ties that may be rounded to either side
are allowed for.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer.architectures import BuildFunction
from localinfer.evaluation.verification.cached_heads import HALF
from localinfer.evaluation.verification.captured_run import CapturedOperation, CapturedRun
from localinfer.evaluation.verification.guided_builder import GuidedBuilder
from localinfer.evaluation.verification.names import OperationNames, kind_of
from localinfer.evaluation.verification.operation_check import (
    TANH,
    OperationCheck,
    check_rounding,
    compare,
    tolerance,
)
from localinfer.evaluation.verification.rounded_weights import RoundedModel, Rounding
from localinfer.gguf.reader import GGUF
from localinfer.graph.properties.adapters import Adapters
from localinfer.graph.recording.operation_log import leaves
from localinfer.naive.formulas import Floats

Points = dict[str, Floats]

MATRIX_OPERATIONS = {"matmul", "matmuls", "slices", "per_head.matmul", "embeddings.tokens"}
# Operations that round inputs of matrices in memory that is not read.
ROUNDING = {"experts.apply", "per_head.matmul", "cross_layer.altup", "altup.merge"}


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
        if captured.path == "cross_layer.copy":  # what it does not write is what the kernels had there
            given[1][:] = captured.changed[1].reshape(given[1].shape)
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
            allowed = tolerance(values, single, flipped) + self._error_of_tanh(captured.path, arguments, keywords)
            of_result = self._names.name_of_result(name, captured.path, arguments, key[1])
            self._add(of_result, captured.path, values, actual, allowed)
            values[:] = actual.reshape(values.shape)
        for builder in (self._exact, *self._variants):
            builder.load_streams(captured)
        self._on_operation(captured.work)
        self._depth -= 1
        if not self._depth:
            for model in self._models:
                model.forget_matrices()
        return result

    def _error_of_tanh(self, path: str, arguments: Sequence[Any], keywords: dict[str, Any]) -> float:
        """Return what the error of the kernels' tanh (`localinfer.kernels.exponentials`) allows: of soft-capped values,
        and of the means of values that are weighed by soft-capped scores."""
        if path == "soft_cap":
            return TANH * float(arguments[2])
        if path != "attend" or not arguments[4].cap:
            return 0.0
        source = keywords.get("kv_source")
        _, values = self._exact.kv_cache[arguments[0].number if source is None else source]
        return 2 * TANH * float(arguments[4].cap) * float(np.abs(values).max())

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
                self.checks.append(check_rounding(name, x, rounded, self.passes))

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
                prefix = re.sub(r"attn_\w+$", "", name)
                cached = (run.values if name.endswith("_v_cache") else run.keys)[prefix]
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
        tensor = self._model.file.tensors.get(f"{name}.weight")
        kind = tensor.type_name if tensor and operation in MATRIX_OPERATIONS else ""
        self.checks.append(compare((name, kind_of(operation), kind), expected, actual, allowed))


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
