"""Records the low-rank changes of LoRA adapters beside the products of a model: see
`localinfer.graph.properties.adapters`.
"""

from collections.abc import Iterable

from localinfer.graph.ops.buffers import Buffer, Region
from localinfer.graph.ops.cost import Cost, CostModel
from localinfer.graph.properties.adapters import LowRankChange
from localinfer.graph.recording.matrix_products import matmul
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.kernels.layout import low_rank_scratch_bytes
from localinfer.kernels.signatures import ADD_LOW_RANK, SCALE_LOW_RANK
from quant import FORMATS


def record_changes(
    model: ModelGraph, x: Buffer, products: Iterable[tuple[Buffer, LowRankChange | None, int]]
) -> None:
    """Add the changes of products with x: each product, its change, and the first of its rows.

    The products may be without a barrier: the first op here does not read them, and has one. One op multiplies x with
    the first matrices of all changes.
    """
    changed = [(y, change, first) for y, change, first in products if change is not None]
    changes = list(dict.fromkeys(change for _, change, _ in changed))
    low, start, starts = matmul(model.graph, x, model.stacked_a(changes)), 0, {}
    for change in changes:
        starts[change] = start
        start += change.rank
    for y, change, first in changed:
        add_low_rank(model, low, y, change, first, start=starts[change], barrier=y is changed[-1][0])


def add_low_rank(
    model: ModelGraph, low: Buffer, y: Buffer, change: LowRankChange, first: int = 0, *, start: int = 0,
    barrier: bool = True,
) -> None:  # fmt: skip
    """Add B (s low) to y, the product's rows from `first` on. `low` has A x from the column `start` on, and s are the
    factors and the scales of the tokens."""
    b, rank = change.panels(first, y.n), change.rank
    model.graph.need_scratch(low_rank_scratch_bytes(rank))
    model.graph.op(
        b.name, ADD_LOW_RANK, low.rows, constants={"format_module": FORMATS[b.type].format_module}, chunks=(1, 8),
        barrier=barrier, cost=CostModel(Cost(b.nbytes), Cost(fmas=b.n_elements)), x=low, x_n=low.n, x_first=start,
        order=model.token_numbers(low.rows) or 0, scales=model.adapter_scales,
        count=model.n_adapters, owners=change.owners, factors=change.factors, rank=rank, b=b, n=y.n, y=y,
    )  # fmt: skip


def scale_expert_rows(
    model: ModelGraph, low: Buffer, change: LowRankChange, order: Region, used: int, *, barrier: bool
) -> None:
    """Multiply each row by the factors and the scales of its token, order[row] // used."""
    model.graph.op(
        f"{change.name}.lora.scale", SCALE_LOW_RANK, low.rows, chunks=(0, 8), barrier=barrier, order=order, used=used,
        scales=model.adapter_scales, count=model.n_adapters, owners=change.owners, factors=change.factors, rank=low.n,
        x=low,
    )  # fmt: skip
