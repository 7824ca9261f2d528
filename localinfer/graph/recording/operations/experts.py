"""Records a mixture of experts: a router chooses some of many feed-forward networks for each token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from localinfer.errors import UnsupportedError
from localinfer.gguf.reader import Tensor
from localinfer.graph.builder import Builder, ExpertOperations
from localinfer.graph.ops.buffers import Buffer, Region, Rows
from localinfer.graph.ops.compute_graph import MAX_SMALL_BATCH, ComputeGraph
from localinfer.graph.properties.adapters import LowRankChange
from localinfer.graph.properties.hyperparameters import Hyperparameters, multiple_of_32
from localinfer.graph.properties.model_properties import Block
from localinfer.graph.properties.router import TABLE, Router, read_expert_table, router_bias
from localinfer.graph.recording.matrix_products import expert_matmul, matmul
from localinfer.graph.recording.model_graph import ExpertLayer, ModelGraph
from localinfer.graph.recording.operations.low_rank import scale_expert_rows
from localinfer.kernels.signatures import (
    ADD,
    COMBINE_EXPERTS,
    GATE_HALVES,
    GATED_ACTIVATION,
    GATHER,
    ROUTE,
    SCALE_EXPERT_ROWS,
    SCALE_EXPERT_WEIGHTS,
    SIGMOID_GATE,
    SORT_BY_EXPERT,
)
from quant.jit.cpu import target
from quant.jit.kernel import Constants
from quant.matmul.layout import RUN_WORDS


class ExpertRecorder(ExpertOperations[Buffer]):
    """Records the ops of a mixture of experts."""

    def __init__(self, g: Builder[Buffer], model: ModelGraph) -> None:
        self._g, self._model, self._graph, self._tensors = g, model, model.graph, model.tensors
        self._routings: dict[Router, Routing] = {}  # memory that all layers share
        self._predictions: dict[Router, tuple[Region, Region]] = {}  # ids and weights of predicted experts, likewise

    def apply(
        self, h: Buffer, blk: Block, router: Router, activation: str, *, gated: bool = True,
        router_input: Buffer | None = None,
    ) -> Buffer:  # fmt: skip
        model, name = self._model, f"{blk}experts"
        n = multiple_of_32(model.hparams, expert_length_key(model.hparams), model.block_count, blk.number)
        logits = self._g.matmul(router_input or h, f"{blk}ffn_gate_inp", router.count)
        if router.logit_cap:
            self._g.soft_cap(logits, 1.0, router.logit_cap)
        bias_name = router_bias(model.f, str(blk))
        bias = self._tensors.floats_beside_ones(bias_name, router.count) if bias_name else None
        if router not in self._routings:
            self._routings[router] = allocate_routing(self._graph, router)
        routing = self._routings[router]
        shapes = {**({"gate": (n, h.n)} if gated else {}), "up": (n, h.n), "down": (h.n, n)}
        if gated and self._tensors.has(f"{blk}ffn_gate_up_exps.weight"):
            shapes = {"gate_up": (2 * n, h.n), "down": (h.n, n)}
        networks = self._networks(blk, router.count, shapes)
        weight_scales = None
        if not router.weighs_inputs and not router.per_adjugate:  # these have the same weights without scales
            networks, weight_scales = networks.without_output_scales()
        chosen = Chosen(routing.ids, routing.weights, self._table(str(blk), router))
        route(self._model, name, logits, router, bias, chosen)
        model.points.add_region(f"{blk}ffn_expert_ids", routing.ids, router.used, np.int32)
        model.points.add_region(f"{blk}ffn_expert_weights", routing.weights, router.used, np.float32)
        sort_by_expert(self._graph, name, logits.rows, router, weight_scales, routing)
        predicted = self._predict(router_input or h, blk.number + 1, router) if model.context.predicts_experts else None
        weights = tuple(networks.matrices.values())
        model.expert_layers.append(
            ExpertLayer(blk.number, len(self._graph.ops), router.used, weights, routing.ids, predicted)
        )
        y = RoutedExperts(model, name, router, routing, networks).apply(h, activation)
        if router.per_adjugate:
            self._g.add(y, self._apply_adjugates(h, blk, router, activation), router.adjugate_scale)
        self._g.point(y, f"{blk}ffn_experts")
        return y

    def _apply_adjugates(self, h: Buffer, blk: Block, router: Router, activation: str) -> Buffer:
        """Return the weighted sum of the outputs of the adjugate experts that the chosen experts share."""
        name, chosen = f"{blk}adjugates", self._routings[router]
        shared = replace(router, count=router.count // router.per_adjugate, per_adjugate=0)
        if shared not in self._routings:
            own = allocate_routing(self._graph, shared)
            self._routings[shared] = replace(own, ids=chosen.ids, weights=chosen.weights)
        n = multiple_of_32(self._model.hparams, "expert_chunk_feed_forward_length")
        shapes = {"gate": (n, h.n), "up": (n, h.n), "down": (h.n, n)}
        networks = self._networks(blk, shared.count, shapes, "chexps")
        sort_by_expert(self._graph, name, h.rows, shared, None, self._routings[shared], share=router.per_adjugate)
        return RoutedExperts(self._model, name, shared, self._routings[shared], networks).apply(h, activation)

    def _predict(self, x: Buffer, number: int, router: Router) -> Region | None:
        """Record which experts the router of layer `number` would choose for the input of this layer's router; None if
        it has no such router. The residual stream changes little from layer to layer (Eliseev and Mazur, 2023)."""
        prefix, tensors, graph = f"blk.{number}.", self._tensors, self._graph
        name = f"{prefix}ffn_gate_inp"
        if not tensors.has(f"{name}.weight") or tensors.f.tensors[f"{name}.weight"].shape != (router.count, x.n):
            return None
        weight, bias_name = tensors.tensor(f"{name}.weight", router.count, x.n), router_bias(tensors.f, prefix)
        bias = tensors.floats_beside_ones(bias_name, router.count) if bias_name else None
        logits = matmul(graph, x, weight, bias=tensors.bias(name, router.count), is_part_of_model=False)
        if router not in self._predictions:
            pairs = graph.batch * router.used
            self._predictions[router] = graph.region(4 * pairs), graph.region(4 * pairs)
        chosen = Chosen(*self._predictions[router], self._table(prefix, router))
        route(self._model, f"{prefix}experts.predicted", logits, router, bias, chosen)
        return self._predictions[router][0]

    def _table(self, prefix: str, router: Router) -> Tensor | None:
        """Return the table of the experts that the number of a token chooses in a layer, if there is one."""
        f = self._tensors.f
        if read_expert_table(f, prefix, router, self._tensors.n_vocab) is None:
            return None
        self._tensors.accept(f"{prefix}{TABLE}")
        return f.tensors[f"{prefix}{TABLE}"]

    def _networks(
        self, blk: Block, count: int, shapes: Mapping[str, tuple[int, int]], kind: str = "exps"
    ) -> "ExpertNetworks":
        """Return the networks of the experts of a layer, whose matrices have these shapes. Those of another `kind` have
        no scales, which are found by the ids of the experts."""
        tensors, names = self._tensors, {name: f"{blk}ffn_{name}_{kind}" for name in shapes}
        matrices = {name: tensors.tensor(f"{names[name]}.weight", count, *shape) for name, shape in shapes.items()}
        biases = {name: tensors.bias(names[name], count, n_out) for name, (n_out, _) in shapes.items()}
        scales = {name: self._scales(names[name], count) if kind == "exps" else None for name in shapes}
        for name, bias in biases.items():
            if bias is not None and scales[name] is not None:
                what = "is not supported together with a bias"
                raise tensors.f.error(f"tensor {names[name]}.scale", what, UnsupportedError)
        return ExpertNetworks(matrices, biases, scales)

    def _scales(self, name: str, count: int) -> Tensor | None:
        """Return the scales of the products of each expert's matrix, if the file has them."""
        self._tensors.accept(f"{name}.input_scale")
        return self._tensors.vector(f"{name}.scale", count) if self._tensors.has(f"{name}.scale") else None

    def sigmoid_gate(self, y: Buffer, h: Buffer, name: str) -> None:
        weight = self._tensors.floats_beside_ones(f"{name}.weight", h.n)
        self._graph.op(name, SIGMOID_GATE, y.rows, chunks=(0, 8), h=h, weight=weight, n_in=h.n, n=y.n, x=y)


def expert_length_key(hparams: Hyperparameters) -> str:
    """Return the key of the hidden size of an expert."""
    expert_key, common_key = "expert_feed_forward_length", "feed_forward_length"
    hparams.accept(common_key)  # mixtures have it even if all layers have experts
    return expert_key if hparams.has(expert_key) else common_key


class ExpertNetworks(NamedTuple):
    """The matrices "gate", "up" and "down" of all experts, (n_expert, n_out, n_in), and their biases, (n_expert,
    n_out).

    "gate_up" replaces gate and up if they are fused. Without a gate, experts compute act(up . h). Products are
    multiplied with `scales`, (n_expert,), if there are any; those of "down" are usually part of the tokens' weights.
    """

    matrices: Mapping[str, Tensor]
    biases: Mapping[str, Tensor | None]
    scales: Mapping[str, Tensor | None]

    def without_output_scales(self) -> "tuple[ExpertNetworks, Tensor | None]":
        """Return the networks without the scales of "down", and these scales."""
        scales = {name: scale for name, scale in self.scales.items() if name != "down"}
        return self._replace(scales=scales), self.scales["down"]


@dataclass(frozen=True, eq=False)
class RoutedRows:
    """Rows sorted by expert, and the runs of rows of each expert: see `localinfer.kernels.experts`. `tile` is 0 for
    row-by-row kernels."""

    rows: Rows
    order: Region
    runs: Region
    tile: int


@dataclass(frozen=True, eq=False)
class Routing:
    """Which experts process which tokens. Experts with more than MAX_SMALL_BATCH tokens have their rows in
    `large_runs`, the others in `small_runs`."""

    ids: Region
    weights: Region
    pair_rows: Region
    small_runs: RoutedRows
    large_runs: RoutedRows

    @property
    def groups(self) -> Sequence[RoutedRows]:
        """The groups of rows that can be non-empty."""
        return [group for group in (self.small_runs, self.large_runs) if group.rows.capacity]


def allocate_routing(graph: ComputeGraph, router: Router, ids: Region | None = None) -> Routing:
    """Reserve the memory of a routing, which all layers share; `ids` are those of the chosen experts if they exist."""
    pairs, tile = graph.batch * router.used, target().tokens
    # The maximum number of experts with large runs.
    n_large_experts = min(router.count, pairs // (MAX_SMALL_BATCH + 1)) if graph.batch > MAX_SMALL_BATCH else 0
    n_small = min(pairs, MAX_SMALL_BATCH * router.count)
    n_large = pairs + n_large_experts * (tile - 1) if n_large_experts else 0

    def routed_rows(rows: Rows, runs: int, tile: int) -> RoutedRows:
        return RoutedRows(rows, graph.region(4 * rows.capacity), graph.region(8 * (1 + RUN_WORDS * runs)), tile)

    weights, pair_rows = (graph.region(4 * pairs) for _ in range(2))
    return Routing(
        ids or graph.region(4 * pairs),
        weights,
        pair_rows,
        routed_rows(graph.rows(n_small, n_small, graph.tokens), min(pairs, router.count), 0),
        routed_rows(graph.rows(n_large, 0, graph.tokens), n_large_experts, tile),
    )


class Chosen(NamedTuple):
    """The memory of the experts that are chosen, int32 [tokens][used], and of their weights, float32. With a `table`,
    the number of a token chooses its experts."""

    ids: Region
    weights: Region
    table: Tensor | None


def route(
    model: ModelGraph, name: str, logits: Buffer, router: Router, bias: Tensor | None, chosen: Chosen
) -> None:
    """Add the op that chooses experts from the router's logits: see `localinfer.kernels.experts.route`."""
    graph = model.graph
    graph.need_scratch(8 * router.count)
    graph.op(
        f"{name}.route", ROUTE, logits.rows,
        constants={"gating": router.gating, "normed": int(router.normed), "best": router.best_per_group},
        chunks=(0, 8), logits=logits, bias=bias or 0, table=chosen.table or 0, token_ids=model.ids,
        scale=router.scale, n_expert=router.count, groups=router.groups, groups_used=router.groups_used,
        used=router.used, ids=chosen.ids, weights=chosen.weights,
    )  # fmt: skip


def sort_by_expert(
    graph: ComputeGraph, name: str, tokens: Rows, router: Router, scales: Tensor | None, routing: Routing, *,
    share: int = 1,
) -> None:  # fmt: skip
    """Add the ops that sort the tokens by expert. Weights are multiplied by the experts' `scales`, if any. `share`
    adjacent ones of the chosen numbers stand for the same expert."""
    if scales:
        graph.op(
            f"{name}.scale", SCALE_EXPERT_WEIGHTS, tokens, chunks=(0, 8), ids=routing.ids, used=router.used,
            scales=scales,
            weights=routing.weights,
        )  # fmt: skip
    small, large = routing.small_runs, routing.large_runs
    graph.op(
        f"{name}.sort", SORT_BY_EXPERT, tokens, constants={"tile": large.tile, "max_small_rows": MAX_SMALL_BATCH},
        chunks=(0, 0),
        ids=routing.ids, share=share, n_expert=router.count, used=router.used, small_rows=small.rows.region,
        small_order=small.order, small_runs=small.runs, large_rows=large.rows.region, large_order=large.order,
        large_runs=large.runs, pair_rows=routing.pair_rows,
    )  # fmt: skip


def row_layout(graph: ComputeGraph, group: RoutedRows) -> Constants:
    """Return the constants of a kernel that writes rows of a group."""
    return {"tile": group.tile, "passes": graph.passes}


def gather(
    graph: ComputeGraph, name: str, x: Buffer, routing: Routing, router: Router, weights: Region | int = 0
) -> Sequence[Buffer]:
    """Return the rows of each group: those of x, multiplied by the `weights` of the tokens' experts if given."""
    rows = [graph.buffer(x.n, group.rows) for group in routing.groups]
    for y, group in zip(rows, routing.groups, strict=True):
        graph.op(
            f"{name}.gather", GATHER, y.rows, constants=row_layout(graph, group), chunks=(0, 8),
            barrier=group is routing.groups[-1], x=x, order=group.order, weights=weights, used=router.used, n=x.n,
            y=y, q=y.quantized,
        )  # fmt: skip
    return rows


def combine(
    graph: ComputeGraph, name: str, outputs: Sequence[Buffer], tokens: Rows, routing: Routing, router: Router,
    weights: Region | int = 0,
) -> Buffer:  # fmt: skip
    """Return the sum of the outputs of each token's experts, multiplied by their `weights` if given."""
    y = graph.buffer(outputs[0].n, tokens)
    graph.op(
        f"{name}.combine", COMBINE_EXPERTS, tokens, chunks=(0, 8), small=outputs[0], large=outputs[-1],
        pair_rows=routing.pair_rows, weights=weights, used=router.used, n=y.n, y=y,
    )  # fmt: skip
    return y


class RoutedExperts(NamedTuple):
    """The experts of a layer, applied to the rows of both groups side by side."""

    model: ModelGraph
    name: str
    router: Router
    routing: Routing
    networks: ExpertNetworks

    @property
    def graph(self) -> ComputeGraph:
        return self.model.graph

    def apply(self, h: Buffer, activation: str) -> Buffer:
        """Return the weighted sum of the chosen experts' outputs."""
        weights = self.routing.weights if self.router.weighs_inputs else 0
        rows = gather(self.graph, self.name, h, self.routing, self.router, weights)
        if "gate_up" in self.networks.matrices:
            hidden = self._gate_halves(self._multiply(rows, "gate_up"), activation)
        elif "gate" in self.networks.matrices:
            gates = self._multiply(rows, "gate", barrier=False)
            hidden = self._gate(gates, self._multiply(rows, "up"), activation)
        else:
            gates = self._multiply(rows, "up")
            hidden = self._gate(gates, [None] * len(gates), activation)
        outputs, weights = self._multiply(hidden, "down"), 0 if self.router.weighs_inputs else self.routing.weights
        return combine(self.graph, self.name, outputs, h.rows, self.routing, self.router, weights)

    def _is_last(self, group: RoutedRows) -> bool:
        return group is self.routing.groups[-1]

    def _multiply(self, rows: Sequence[Buffer], matrix: str, *, barrier: bool = True) -> Sequence[Buffer]:
        """Return the product of each row with the matrix of its expert."""
        networks = self.networks
        weights, bias, scales = networks.matrices[matrix], networks.biases[matrix], networks.scales.get(matrix)
        change = self.model.low_rank(weights.name)
        barrier = barrier or scales is not None or change is not None
        outputs = [
            expert_matmul(
                self.graph, x, weights, group.runs, self.router.used, bias, tiled=group.tile > 0,
                barrier=barrier and self._is_last(group),
            )
            for x, group in zip(rows, self.routing.groups, strict=True)
        ]  # fmt: skip
        for y, group in zip(outputs, self.routing.groups, strict=True) if scales else ():
            self.graph.op(
                f"{self.name}.scale", SCALE_EXPERT_ROWS, y.rows, chunks=(0, 8), barrier=self._is_last(group),
                order=group.order, ids=self.routing.ids, scales=scales or 0, n=y.n, y=y,
            )  # fmt: skip
        if change is not None:
            self._add_low_rank(rows, outputs, change)
        if matrix != "down":
            point = weights.name.removesuffix(".weight")
            self.model.points.add_expert_rows(point, outputs, self.routing.pair_rows, self.router.used)
        return outputs

    def _add_low_rank(self, rows: Sequence[Buffer], outputs: Sequence[Buffer], change: LowRankChange) -> None:
        """Add to the outputs what adapters change in the product of each row with the matrix of its expert."""

        def multiply(inputs: Sequence[Buffer], matrices: Tensor) -> list[Buffer]:
            return [
                expert_matmul(
                    self.graph, x, matrices, group.runs, self.router.used, None, tiled=group.tile > 0,
                    barrier=self._is_last(group),
                )
                for x, group in zip(inputs, self.routing.groups, strict=True)
            ]  # fmt: skip

        low = multiply(rows, change.a)
        for x, group in zip(low, self.routing.groups, strict=True):
            scale_expert_rows(
                self.model, x, change, group.order, self.router.used, barrier=self._is_last(group)
            )
        for y, product, group in zip(outputs, multiply(low, change.b), self.routing.groups, strict=True):
            self.graph.op(
                f"{self.name}.add", ADD, y.rows, chunks=(0, 8), barrier=self._is_last(group), branch=product,
                factor=1.0, n=y.n, x=y,
            )  # fmt: skip

    def _gate_halves(self, rows: Sequence[Buffer], activation: str) -> Sequence[Buffer]:
        """Return act(gate) * up of rows that contain both."""
        gates = [self.graph.buffer(x.n // 2, x.rows) for x in rows]
        for gate, x, group in zip(gates, rows, self.routing.groups, strict=True):
            self.graph.op(
                f"{self.name}.gated", GATE_HALVES, gate.rows,
                constants={**row_layout(self.graph, group), "activation": activation}, chunks=(0, 8),
                barrier=self._is_last(group), x=x, n=gate.n, y=gate, q=gate.quantized,
            )  # fmt: skip
        return gates

    def _gate(self, gates: Sequence[Buffer], ups: Sequence[Buffer | None], activation: str) -> Sequence[Buffer]:
        """Return act(gate) * up, or act(gate), in place of the gates."""
        for gate, up, group in zip(gates, ups, self.routing.groups, strict=True):
            self.graph.op(
                f"{self.name}.gated", GATED_ACTIVATION, gate.rows,
                constants={**row_layout(self.graph, group), "activation": activation}, chunks=(1, 8),
                barrier=self._is_last(group), up=up or 0, up_n=up.n if up else 0, up_first=0, n=gate.n, gate=gate,
                q=gate.quantized,
            )  # fmt: skip
        return gates
