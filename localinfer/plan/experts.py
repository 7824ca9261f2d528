"""A mixture of experts: a router chooses some of many feed-forward networks for each token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localinfer.files.gguf import GGUF, Tensor
from localinfer.ops.calls import BLEND, GATE_HALVES, GATED, GATHER, LINE_UP, ROUTE, SCALE_CHOSEN, SCALE_ROWS
from localinfer.plan.buffers import Buffer, Region, Rows
from localinfer.plan.keys import Keys
from localinfer.plan.plan import FEW, Plan
from quant.jit.cpu import target
from quant.jit.kernel import Constants
from quant.products.layout import RUN_WORDS


@dataclass(frozen=True)
class Router:
    """`used` of `count` experts see each token.

    The router's logits become probabilities by "softmax" or "sigmoid", or the softmax of the chosen ones
    ("softmax_of_chosen"), or each the share that it has of those near it ("sparse_mixer"). The weights of the chosen
    are divided by their sum if `normed`, and multiplied by `scale`. They weigh what experts make of a token, or with
    `weighs_inputs` what these are given.

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
    weighs_inputs: bool = False


def read_router(keys: Keys, gating: str, *, normed: bool, best: int = 2, weighs_inputs: bool = False) -> Router:
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
    return Router(count, used, functions[number], normed, scale, groups, groups_used, best, weighs_inputs)


def of_a_token(f: GGUF) -> tuple[int, int]:
    """The weights that a token is multiplied with, and their bytes: of experts, only those that see it. A file that is
    none of a mixture, or says of one what makes no sense, has nothing else."""
    name = f.get("general.architecture", str)
    count, used = (f.metadata.get(f"{name}.expert_{key}") for key in ("count", "used_count"))
    if not (isinstance(count, int) and isinstance(used, int) and 0 < used <= count):
        count = used = 1

    def part(tensor: Tensor, whole: int) -> int:
        return whole * used // count if "_exps." in tensor.name and tensor.shape[:1] == (count,) else whole

    tensors = f.tensors.values()
    return sum(part(each, each.n_elements) for each in tensors), sum(part(each, each.nbytes) for each in tensors)


@dataclass(frozen=True)
class Networks:
    """The matrices "gate", "up" and "down" of all experts, (n_expert, n_out, n_in), and their biases, (n_expert,
    n_out), if they have any. "gate_up" may stand for two of them, one behind the other in its rows; without any gate,
    what counts is act(up . h). Products are multiplied with `scales`, (n_expert,), if there are any: those of "down"
    are among the tokens' weights, mostly."""

    matrices: Mapping[str, Tensor]
    biases: Mapping[str, Tensor | None]
    scales: Mapping[str, Tensor | None]


@dataclass(frozen=True, eq=False)
class Line:
    """Rows that experts multiply, and which are of which pair and of which expert: see `localinfer.ops.experts`. `tile`
    is 0 where they do so row by row."""

    rows: Rows
    order: Region
    runs: Region
    tile: int


@dataclass(frozen=True, eq=False)
class Choice:
    """Which experts see which tokens; `many` are the rows of those that see more than FEW of a batch."""

    ids: Region
    weights: Region
    places: Region
    few: Line
    many: Line

    @property
    def lines(self) -> Sequence[Line]:
        """Those that there may be rows in."""
        return [line for line in (self.few, self.many) if line.rows.capacity]


def room_to_choose(plan: Plan, router: Router) -> Choice:
    """The memory of a choice, which blocks use one after the other."""
    pairs, tile = plan.batch * router.used, target().tokens
    crowded = min(router.count, pairs // (FEW + 1)) if plan.batch > FEW else 0  # the most experts with many rows
    few = min(pairs, FEW * router.count)
    many = pairs + crowded * (tile - 1) if crowded else 0

    def line(rows: Rows, runs: int, tile: int) -> Line:
        return Line(rows, plan.region(4 * rows.capacity), plan.region(8 * (1 + RUN_WORDS * runs)), tile)

    ids, weights, places = (plan.region(4 * pairs) for _ in range(3))
    return Choice(
        ids,
        weights,
        places,
        line(plan.rows(few, few, plan.tokens), min(pairs, router.count), 0),
        line(plan.rows(many, 0, plan.tokens), crowded, tile),
    )


def choose(
    plan: Plan, name: str, logits: Buffer, router: Router, bias: Tensor | None, scales: Tensor | None, choice: Choice
) -> None:
    """Record how experts are chosen by a router's logits, and lined up; an expert's weight is multiplied by its scale,
    if they have any."""
    plan.need_scratch(8 * router.count)
    plan.op(
        f"{name}.route", ROUTE, logits.rows,
        constants={"gating": router.gating, "normed": int(router.normed), "best": router.best},
        rounds=(0, 4), logits=logits, bias=bias or 0, scale=router.scale, n_expert=router.count,
        groups=router.groups, groups_used=router.groups_used,
        used=router.used, ids=choice.ids, weights=choice.weights,
    )  # fmt: skip
    if scales:
        plan.op(
            f"{name}.scale", SCALE_CHOSEN, logits.rows, rounds=(0, 4), ids=choice.ids, used=router.used, scales=scales,
            weights=choice.weights,
        )  # fmt: skip
    few, many = choice.few, choice.many
    plan.op(
        f"{name}.line_up", LINE_UP, logits.rows, constants={"tile": many.tile, "most": FEW}, rounds=(0, 0),
        ids=choice.ids, n_expert=router.count, used=router.used, few=few.rows.region, few_order=few.order,
        few_runs=few.runs, many=many.rows.region, many_order=many.order, many_runs=many.runs, places=choice.places,
    )  # fmt: skip


def mix(
    plan: Plan, name: str, h: Buffer, choice: Choice, router: Router, networks: Networks, activation: str
) -> Buffer:
    """Record the weighted sum of what the chosen experts make of h. Both lines go side by side."""
    lines = choice.lines

    def layout(line: Line) -> Constants:
        return {"tile": line.tile, "passes": plan.passes}

    def products(rows: Sequence[Buffer], matrix: str, *, meet: bool = True) -> Sequence[Buffer]:
        weights, bias, scales = networks.matrices[matrix], networks.biases[matrix], networks.scales.get(matrix)
        meet = meet or scales is not None
        found = [
            plan.expert_matmul(
                x, weights, line.runs, router.used, bias, tiled=line.tile > 0, meet=meet and line is lines[-1]
            )
            for x, line in zip(rows, lines, strict=True)
        ]
        for y, line in zip(found, lines, strict=True) if scales else ():
            plan.op(
                f"{name}.scale", SCALE_ROWS, y.rows, rounds=(0, 4), meet=line is lines[-1], order=line.order,
                ids=choice.ids, scales=scales or 0, n=y.n, y=y,
            )  # fmt: skip
        return found

    rows = [plan.buffer(h.n, line.rows) for line in lines]
    for x, line in zip(rows, lines, strict=True):
        plan.op(
            f"{name}.gather", GATHER, x.rows, constants=layout(line), rounds=(0, 4), meet=line is lines[-1], x=h,
            order=line.order, weights=choice.weights if router.weighs_inputs else 0, used=router.used, n=h.n, y=x,
            q=x.quantized,
        )  # fmt: skip
    if "gate_up" in networks.matrices:
        both = products(rows, "gate_up")
        gates = [plan.buffer(each.n // 2, each.rows) for each in both]
        for gate, x, line in zip(gates, both, lines, strict=True):
            plan.op(
                f"{name}.gated", GATE_HALVES, gate.rows, constants={**layout(line), "activation": activation},
                rounds=(0, 4), meet=line is lines[-1], x=x, n=gate.n, y=gate, q=gate.quantized,
            )  # fmt: skip
    else:
        gated = "gate" in networks.matrices
        gates = [*products(rows, "gate", meet=False)] if gated else [*products(rows, "up")]
        ups = products(rows, "up") if gated else [None] * len(lines)
        for gate, up, line in zip(gates, ups, lines, strict=True):
            plan.op(
                f"{name}.gated", GATED, gate.rows, constants={**layout(line), "activation": activation},
                rounds=(1, 4), meet=line is lines[-1], up=up or 0, up_n=up.n if up else 0, up_first=0, n=gate.n,
                gate=gate, q=gate.quantized,
            )  # fmt: skip
    branches, y = products(gates, "down"), plan.buffer(h.n, h.rows)
    plan.op(
        f"{name}.blend", BLEND, h.rows, rounds=(0, 4), few=branches[0], many=branches[-1], places=choice.places,
        weights=0 if router.weighs_inputs else choice.weights, used=router.used, n=h.n, y=y,
    )  # fmt: skip
    return y
