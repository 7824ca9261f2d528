"""Mixture of experts: a router chooses some of many feed-forward networks for each token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localinfer.gguf.reader import GGUF, Tensor
from localinfer.graph.buffers import Buffer, Region, Rows
from localinfer.graph.compute_graph import MAX_SMALL_BATCH, ComputeGraph
from localinfer.graph.hyperparameters import Hyperparameters
from localinfer.graph.matrix_products import expert_matmul
from localinfer.kernels.signatures import (
    COMBINE_EXPERTS,
    GATE_HALVES,
    GATED_ACTIVATION,
    GATHER,
    ROUTE,
    SCALE_EXPERT_ROWS,
    SCALE_EXPERT_WEIGHTS,
    SORT_BY_EXPERT,
)
from quant.jit.cpu import target
from quant.jit.kernel import Constants
from quant.matmul.layout import RUN_WORDS


@dataclass(frozen=True)
class Router:
    """How `used` of `count` experts are chosen for each token, and weighted.

    `gating` turns the router's logits into probabilities: "softmax", "sigmoid", "softmax_of_chosen" (softmax over the
    chosen logits) or "sparse_mixer" (Phi-3.5-MoE). The weights are divided by their sum if `normed`, and multiplied by
    `scale`. They scale the experts' outputs, or with `weighs_inputs` their inputs.

    If experts are in `groups` of adjacent experts, only the `groups_used` groups with the highest scores are eligible.
    The score of a group is the sum of the probabilities of its `best_per_group` best experts, one or two.
    """

    count: int
    used: int
    gating: str = "softmax"
    normed: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    best_per_group: int = 2
    weighs_inputs: bool = False


def read_router(
    hparams: Hyperparameters, gating: str, *, normed: bool, best_per_group: int = 2, weighs_inputs: bool = False
) -> Router:
    """Return the router that the metadata describes; the arguments are the architecture's defaults."""
    count = hparams.count("expert_count")
    used = hparams.count("expert_used_count", maximum=count)
    groups = hparams.count("expert_group_count", 1, minimum=0) or 1
    groups_used = hparams.count("expert_group_used_count", groups, minimum=0, maximum=groups) or groups
    if count % groups or count // groups < best_per_group:
        raise hparams.error(
            "expert_group_count", f"is {groups}; groups of {best_per_group} or more must make up {count} experts"
        )
    if groups_used * (count // groups) < used:
        raise hparams.error("expert_group_used_count", f"is {groups_used}; {used} experts do not fit")
    functions = {0: gating, 1: "softmax", 2: "sigmoid", 3: "softmax_of_chosen"}
    number = hparams.count("expert_gating_func", 0, minimum=0)
    if number not in functions:
        raise hparams.unsupported("expert_gating_func", number)
    scale = hparams.number("expert_weights_scale", 1.0) or 1.0
    normed = hparams.flag("expert_weights_norm", normed)
    return Router(count, used, functions[number], normed, scale, groups, groups_used, best_per_group, weighs_inputs)


def active_parameters(f: GGUF) -> tuple[int, int]:
    """Return the number of weights that a token is multiplied with, and their bytes. Expert tensors count
    in proportion to the experts that a token uses. Without valid expert metadata, all weights count."""
    name = f.get("general.architecture", str)
    count, used = (f.metadata.get(f"{name}.expert_{key}") for key in ("count", "used_count"))
    if not (isinstance(count, int) and isinstance(used, int) and 0 < used <= count):
        count = used = 1

    def active(tensor: Tensor, whole: int) -> int:
        return whole * used // count if "_exps." in tensor.name and tensor.shape[:1] == (count,) else whole

    tensors = f.tensors.values()
    return sum(active(each, each.n_elements) for each in tensors), sum(active(each, each.nbytes) for each in tensors)


@dataclass(frozen=True)
class ExpertNetworks:
    """The matrices "gate", "up" and "down" of all experts, (n_expert, n_out, n_in), and their biases, (n_expert,
    n_out).

    "gate_up" replaces gate and up if they are fused. Without a gate, experts compute act(up . h). Products are
    multiplied with `scales`, (n_expert,), if there are any; those of "down" are usually part of the tokens' weights.
    """

    matrices: Mapping[str, Tensor]
    biases: Mapping[str, Tensor | None]
    scales: Mapping[str, Tensor | None]


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
    places: Region
    small_runs: RoutedRows
    large_runs: RoutedRows

    @property
    def groups(self) -> Sequence[RoutedRows]:
        """The groups of rows that can be non-empty."""
        return [group for group in (self.small_runs, self.large_runs) if group.rows.capacity]


def allocate_routing(graph: ComputeGraph, router: Router) -> Routing:
    """Reserve the memory of a routing, which all layers share."""
    pairs, tile = graph.batch * router.used, target().tokens
    # The maximum number of experts with large runs.
    n_large_experts = min(router.count, pairs // (MAX_SMALL_BATCH + 1)) if graph.batch > MAX_SMALL_BATCH else 0
    n_small = min(pairs, MAX_SMALL_BATCH * router.count)
    n_large = pairs + n_large_experts * (tile - 1) if n_large_experts else 0

    def routed_rows(rows: Rows, runs: int, tile: int) -> RoutedRows:
        return RoutedRows(rows, graph.region(4 * rows.capacity), graph.region(8 * (1 + RUN_WORDS * runs)), tile)

    ids, weights, places = (graph.region(4 * pairs) for _ in range(3))
    return Routing(
        ids,
        weights,
        places,
        routed_rows(graph.rows(n_small, n_small, graph.tokens), min(pairs, router.count), 0),
        routed_rows(graph.rows(n_large, 0, graph.tokens), n_large_experts, tile),
    )


def route(
    graph: ComputeGraph,
    name: str,
    logits: Buffer,
    router: Router,
    bias: Tensor | None,
    scales: Tensor | None,
    routing: Routing,
) -> None:
    """Add the ops that choose experts from the router's logits and sort the tokens by expert. Weights are multiplied by
    the experts' `scales`, if any."""
    graph.need_scratch(8 * router.count)
    graph.op(
        f"{name}.route", ROUTE, logits.rows,
        constants={"gating": router.gating, "normed": int(router.normed), "best": router.best_per_group},
        chunks=(0, 4), logits=logits, bias=bias or 0, scale=router.scale, n_expert=router.count,
        groups=router.groups, groups_used=router.groups_used,
        used=router.used, ids=routing.ids, weights=routing.weights,
    )  # fmt: skip
    if scales:
        graph.op(
            f"{name}.scale", SCALE_EXPERT_WEIGHTS, logits.rows, chunks=(0, 4), ids=routing.ids, used=router.used,
            scales=scales,
            weights=routing.weights,
        )  # fmt: skip
    small, large = routing.small_runs, routing.large_runs
    graph.op(
        f"{name}.sort", SORT_BY_EXPERT, logits.rows, constants={"tile": large.tile, "most": MAX_SMALL_BATCH},
        chunks=(0, 0),
        ids=routing.ids, n_expert=router.count, used=router.used, few=small.rows.region, few_order=small.order,
        few_runs=small.runs, many=large.rows.region, many_order=large.order, many_runs=large.runs,
        places=routing.places,
    )  # fmt: skip


def apply_experts(
    graph: ComputeGraph,
    name: str,
    h: Buffer,
    routing: Routing,
    router: Router,
    networks: ExpertNetworks,
    activation: str,
) -> Buffer:
    """Add the weighted sum of the chosen experts' outputs. The ops of both row groups run side by side."""
    groups = routing.groups

    def layout(group: RoutedRows) -> Constants:
        return {"tile": group.tile, "passes": graph.passes}

    def products(rows: Sequence[Buffer], matrix: str, *, barrier: bool = True) -> Sequence[Buffer]:
        weights, bias, scales = networks.matrices[matrix], networks.biases[matrix], networks.scales.get(matrix)
        barrier = barrier or scales is not None
        outputs = [
            expert_matmul(
                graph,
                x,
                weights,
                group.runs,
                router.used,
                bias,
                tiled=group.tile > 0,
                barrier=barrier and group is groups[-1],
            )
            for x, group in zip(rows, groups, strict=True)
        ]
        for y, group in zip(outputs, groups, strict=True) if scales else ():
            graph.op(
                f"{name}.scale", SCALE_EXPERT_ROWS, y.rows, chunks=(0, 4), barrier=group is groups[-1],
                order=group.order,
                ids=routing.ids, scales=scales or 0, n=y.n, y=y,
            )  # fmt: skip
        return outputs

    rows = [graph.buffer(h.n, group.rows) for group in groups]
    for x, group in zip(rows, groups, strict=True):
        graph.op(
            f"{name}.gather", GATHER, x.rows, constants=layout(group), chunks=(0, 4), barrier=group is groups[-1], x=h,
            order=group.order, weights=routing.weights if router.weighs_inputs else 0, used=router.used, n=h.n, y=x,
            q=x.quantized,
        )  # fmt: skip
    if "gate_up" in networks.matrices:
        gate_up = products(rows, "gate_up")
        gates = [graph.buffer(each.n // 2, each.rows) for each in gate_up]
        for gate, x, group in zip(gates, gate_up, groups, strict=True):
            graph.op(
                f"{name}.gated", GATE_HALVES, gate.rows, constants={**layout(group), "activation": activation},
                chunks=(0, 4), barrier=group is groups[-1], x=x, n=gate.n, y=gate, q=gate.quantized,
            )  # fmt: skip
    else:
        gated = "gate" in networks.matrices
        gates = [*products(rows, "gate", barrier=False)] if gated else [*products(rows, "up")]
        ups = products(rows, "up") if gated else [None] * len(groups)
        for gate, up, group in zip(gates, ups, groups, strict=True):
            graph.op(
                f"{name}.gated", GATED_ACTIVATION, gate.rows, constants={**layout(group), "activation": activation},
                chunks=(1, 4), barrier=group is groups[-1], up=up or 0, up_n=up.n if up else 0, up_first=0, n=gate.n,
                gate=gate, q=gate.quantized,
            )  # fmt: skip
    branches, y = products(gates, "down"), graph.buffer(h.n, h.rows)
    graph.op(
        f"{name}.combine", COMBINE_EXPERTS, h.rows, chunks=(0, 4), few=branches[0], many=branches[-1],
        places=routing.places,
        weights=0 if router.weighs_inputs else routing.weights, used=router.used, n=h.n, y=y,
    )  # fmt: skip
    return y
