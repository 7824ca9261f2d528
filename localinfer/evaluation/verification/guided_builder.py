"""The naive forward pass that continues with what the kernels have computed.

A `GuidedBuilder` computes the operations of an architecture file in numpy. Where an operation contains others that were
captured, their captured results are taken, so that errors do not accumulate.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer.evaluation.verification.cached_heads import transform
from localinfer.evaluation.verification.captured_run import CapturedOperation, CapturedRun
from localinfer.evaluation.verification.rounded_weights import RoundedModel
from localinfer.graph.builder import AltUpStreams, Block, BlockFunction, MtpSpec, Router
from localinfer.graph.recording.operation_log import Operation, intercept, intercept_streams, leaves
from localinfer.naive.formulas import (
    Floats,
    choose_experts,
    expert_probabilities,
    expert_weights,
    split_heads,
)
from localinfer.naive.operations import NumpyBuilder

OnOperation = Callable[[CapturedOperation, Sequence[Any], dict[str, Any]], Any]


def ignore_head(x: Floats, apply_block: BlockFunction[Floats], spec: MtpSpec) -> None:
    """Do nothing: MTP heads are not captured."""


class GuidedBuilder(NumpyBuilder):
    """A numpy builder that takes the results of the captured operations within the one that it computes, also of points
    and of the KV cache. `own` is what it computed for these itself; for experts, the values that they were chosen for,
    and `chosen` those of the experts that the kernels chose.

    `on_operation` is called for captured operations instead, and returns their results.
    """

    def __init__(self, model: RoundedModel, run: CapturedRun, on_operation: OnOperation | None = None) -> None:
        super().__init__(model, run.tokens)
        self.rounded_model, self.run, self.own, self.chosen = model, run, dict[str, Floats](), dict[str, Floats]()
        self.streams: AltUpStreams[Floats] | None = None
        self._operations: dict[str, Operation] = {}  # by path, as `NumpyBuilder` has them
        self._expected = run.operations  # the captured operations that follow, within the one that is computed
        self._on_operation = on_operation
        self.experts.choose = self._choose  # type: ignore[method-assign]
        self.output.add_mtp_head = ignore_head  # type: ignore[method-assign]
        intercept(self, self._wrap)

    def compute(
        self, captured: CapturedOperation, arguments: Sequence[Any], keywords: dict[str, Any]
    ) -> tuple[Any, dict[str, Floats]]:
        """Compute an operation. Return its result, and what it computed for points and caches."""
        outer, self._expected, self.own = (self._expected, self.own), captured.inner, {}
        self.rounded_model.inputs = captured.rounded
        result = self._operations[captured.path](*arguments, **keywords)
        if captured.path == "output.logits":
            self.output.compute_logits()
        if isinstance(result, AltUpStreams):
            self.streams = result
            intercept_streams(result, self._wrap)
        own = self.own
        self._expected, self.own = outer
        return result, own

    def load_streams(self, captured: CapturedOperation) -> None:
        """Continue with captured residual streams."""
        if self.streams is not None and captured.streams:
            shape = self.streams.streams.shape
            both = [each.astype(self.model.dtype).reshape(shape) for each in captured.streams]
            self.streams.streams, self.streams.predicted = both

    def asks_for(self, name: str) -> bool:  # noqa: ARG002 (operations are fused as in the graph that is verified)
        return False

    def _wrap(self, path: str, method: Operation) -> Operation:
        self._operations[path] = method

        def intercepted(*arguments: Any, **keywords: Any) -> Any:
            at = next((number for number, each in enumerate(self._expected) if each.path == path), None)
            if at is None:
                return method(*arguments, **keywords)
            captured, self._expected = self._expected[at], self._expected[at + 1 :]
            if self._on_operation:
                return self._on_operation(captured, arguments, keywords)
            given = [*leaves((arguments, tuple(keywords.values())), np.ndarray)]
            for number, values in captured.changed.items():
                given[number][:] = values.reshape(given[number].shape)
            results = [each.astype(self.model.dtype) for each in captured.results]
            return results[0] if len(results) == 1 else results or None

        return intercepted

    # --- what is captured within operations ---

    def point(self, x: Floats, name: str) -> None:
        if name in self.run.points:
            self.own[name] = x.copy()
            x[:] = self.run.points[name].reshape(x.shape)

    def state_point(self, state: Floats, name: str) -> None:
        self.own[name] = np.stack([*self.own.get(name, ()), state])
        state[:] = self.run.points[name][len(self.own[name]) - 1]

    def store_in_cache(
        self, blk: Block, k: Floats, v: Floats | None, anchors: Floats | float, kind: str = ""
    ) -> tuple[Floats, Floats]:
        prefix = f"{blk}{kind}"
        cached = self.run.keys[prefix]
        keys = cached.heads().astype(k.dtype)
        if cached.anchors is not None:
            padded = np.zeros(cached.anchors.shape, k.dtype)
            padded[..., : cached.size] = anchors
            self.own[f"{prefix}attn_k_anchor"] = transform(padded)
        self.own[f"{prefix}attn_k_cache"] = cached.as_stored(k)
        if v is None:
            return keys, keys[..., -blk.heads.value :]
        cached = self.run.values[prefix]
        self.own[f"{prefix}attn_v_cache"] = cached.as_stored(split_heads(v, blk.heads.count_kv))
        return keys, cached.heads().astype(k.dtype)

    def _choose(self, scores: Floats, blk: Block, router: Router) -> tuple[NDArray[np.int64], Floats]:
        p, name = expert_probabilities(scores, router), f"{blk}ffn_expert_ids"
        values, ids = p + self.model.router_bias(str(blk)), self.run.points[name].astype(np.int64)
        own = self.experts.fixed_ids(blk, router)
        own = choose_experts(values, router) if own is None else own
        self.own[name] = np.take_along_axis(values, own, axis=1)
        is_expert, ids = (ids >= 0) & (ids < router.count), np.clip(ids, 0, router.count - 1)
        self.chosen[name] = np.where(is_expert, np.take_along_axis(values, ids, axis=1), np.nan)
        weights = expert_weights(p, ids, router)
        self.point(weights, f"{blk}ffn_expert_weights")
        return ids, weights
