"""A mixture of experts: a router chooses some of many feed-forward networks for each token."""

from collections.abc import Mapping
from dataclasses import dataclass

from localinfer.files.gguf import Tensor
from localinfer.ops.calls import BLEND, GATE_HALVES, GATED, GATHER, LINE_UP, ROUTE, SCALE_CHOSEN
from localinfer.plan.buffers import Buffer, Region, Rows
from localinfer.plan.keys import Keys
from localinfer.plan.plan import FEW, Plan
from quant.jit.cpu import target
from quant.products.layout import RUN_WORDS


@dataclass(frozen=True)
class Router:
    """`used` of `count` experts see each token.

    The router's logits become probabilities by "softmax" or "sigmoid", or the softmax of the chosen ones
    ("softmax_of_chosen"). The weights of the chosen are divided by their sum if `normed`, and multiplied by `scale`.

    Experts may be in `groups`, neighbours all of them: only those of the `groups_used` can be chosen whose `best`
    experts, one or two, have the largest probabilities together.
    """

    count: int
    used: int
    gating: str = "softmax"
    normed: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    best: int = 2


def read_router(keys: Keys, gating: str, *, normed: bool, best: int = 2) -> Router:
    """As the file says; what it does not say is the architecture's."""
    count = keys.count("expert_count")
    used = keys.count("expert_used_count", most=count)
    groups = keys.count("expert_group_count", 1, least=0) or 1
    groups_used = keys.count("expert_group_used_count", groups, least=0, most=groups) or groups
    if count % groups or count // groups < best:
        raise keys.error("expert_group_count", f"is {groups}; groups of {best} or more must make up {count} experts")
    if groups_used * (count // groups) < used:
        raise keys.error("expert_group_used_count", f"is {groups_used}; {used} experts must be in so many groups")
    functions = {0: gating, 1: "softmax", 2: "sigmoid", 3: "softmax_of_chosen"}
    number = keys.count("expert_gating_func", 0, least=0)
    if number not in functions:
        raise keys.refuse("expert_gating_func", number)
    scale = keys.number("expert_weights_scale", 1.0) or 1.0
    normed = keys.flag("expert_weights_norm", normed)
    return Router(count, used, functions[number], normed, scale, groups, groups_used, best)


@dataclass(frozen=True)
class Networks:
    """The matrices "gate", "up" and "down" of all experts, (n_expert, n_out, n_in), and their biases, (n_expert,
    n_out), if they have any. "gate_up" may stand for two of them, one behind the other in its rows."""

    matrices: Mapping[str, Tensor]
    biases: Mapping[str, Tensor | None]


@dataclass(frozen=True, eq=False)
class Choice:
    """Which experts see which tokens: see `localinfer.ops.experts`."""

    rows: Rows
    weights: Region
    order: Region
    places: Region
    runs: Region


def choose(
    plan: Plan, name: str, logits: Buffer, router: Router, bias: Tensor | None, scales: Tensor | None = None
) -> Choice:
    """Record how experts are chosen by a router's logits, and lined up; an expert's weight is multiplied by its scale,
    if they have any."""
    pairs = plan.batch * router.used
    padding = router.count * (target().tokens - 1) if plan.batch > FEW else 0
    few = min(FEW, plan.batch) * router.used
    rows = plan.rows(pairs + padding, few, plan.tokens)
    ids, weights, order, places = (plan.region(4 * n) for n in (pairs, pairs, rows.capacity, pairs))
    runs = plan.region(8 * (1 + RUN_WORDS * max(few, router.count)))
    plan.need_scratch(8 * router.count)
    plan.op(
        f"{name}.route", ROUTE, logits.rows,
        constants={"gating": router.gating, "normed": int(router.normed), "best": router.best},
        rounds=(0, 4), logits=logits, bias=bias or 0, scale=router.scale, n_expert=router.count,
        groups=router.groups, groups_used=router.groups_used,
        used=router.used, ids=ids, weights=weights,
    )  # fmt: skip
    if scales:
        plan.op(
            f"{name}.scale", SCALE_CHOSEN, logits.rows, rounds=(0, 4), ids=ids, used=router.used, scales=scales,
            weights=weights,
        )  # fmt: skip
    plan.op(
        f"{name}.line_up", LINE_UP, logits.rows, constants=({"tile": 0}, {"tile": target().tokens}), rounds=(0, 0),
        ids=ids, lined_up=rows.region, order=order, places=places, runs=runs,
        n_expert=router.count, used=router.used,
    )  # fmt: skip
    return Choice(rows, weights, order, places, runs)


def mix(
    plan: Plan, name: str, h: Buffer, choice: Choice, router: Router, networks: Networks, activation: str
) -> Buffer:
    """Record the weighted sum of what the chosen experts make of h."""
    x = plan.buffer(h.n, choice.rows)
    plan.op(
        f"{name}.gather", GATHER, x.rows, constants=plan.layouts, rounds=(0, 4), x=h, order=choice.order,
        used=router.used, n=h.n, y=x, q=x.quantized,
    )  # fmt: skip

    def product(x: Buffer, matrix: str) -> Buffer:
        return plan.expert_matmul(x, networks.matrices[matrix], choice.runs, router.used, networks.biases[matrix])

    few, many = ({**layout, "activation": activation} for layout in plan.layouts)
    if "gate_up" in networks.matrices:
        both = product(x, "gate_up")
        gate = plan.buffer(both.n // 2, both.rows)
        plan.op(
            f"{name}.gated", GATE_HALVES, gate.rows, constants=(few, many), rounds=(0, 4), x=both, n=gate.n, y=gate,
            q=gate.quantized,
        )  # fmt: skip
    else:
        gate, up = product(x, "gate"), product(x, "up")
        plan.op(
            f"{name}.gated", GATED, gate.rows, constants=(few, many), rounds=(1, 4), up=up, up_n=up.n, up_first=0,
            n=gate.n, gate=gate, q=gate.quantized,
        )  # fmt: skip
    branch = product(gate, "down")
    y = plan.buffer(h.n, h.rows)
    plan.op(
        f"{name}.blend", BLEND, h.rows, rounds=(0, 4), branch=branch, places=choice.places, weights=choice.weights,
        used=router.used, n=h.n, y=y,
    )  # fmt: skip
    return y
