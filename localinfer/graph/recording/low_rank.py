"""Records the low-rank changes of LoRA adapters beside the products of a model: see
`localinfer.graph.properties.adapters`.
"""

from localinfer.graph.ops.buffers import Buffer, Region
from localinfer.graph.ops.cost import Cost, CostModel
from localinfer.graph.properties.adapters import LowRankChange
from localinfer.graph.recording.matrix_products import matmul
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.kernels.layout import low_rank_scratch_bytes
from localinfer.kernels.signatures import ADD_LOW_RANK, SCALE_LOW_RANK
from quant import FORMATS


def add_low_rank(
    model: ModelGraph, x: Buffer, y: Buffer, change: LowRankChange, first: int = 0, *, barrier: bool = True
) -> None:
    """Add the change of a product with x to its rows `first` on, y.

    The product itself may be without a barrier: the first op here does not read it, and has one.
    """
    add_scaled(model, matmul(model.graph, x, change.a), y, change, first, barrier=barrier)


def add_scaled(
    model: ModelGraph, low: Buffer, y: Buffer, change: LowRankChange, first: int = 0, *, barrier: bool = True
) -> None:
    """Add B (s low) to y, where `low` is A x, and s the factors and the scales of the tokens."""
    b = change.panels(first, y.n)
    model.graph.need_scratch(low_rank_scratch_bytes(low.n))
    model.graph.op(
        b.name, ADD_LOW_RANK, low.rows, constants={"format_module": FORMATS[b.type].format_module}, chunks=(1, 8),
        barrier=barrier, cost=CostModel(Cost(b.nbytes), Cost(fmas=b.n_elements)), x=low,
        order=model.token_numbers(low.rows) or 0, scales=model.adapter_scales,
        count=model.n_adapters, owners=change.owners, factors=change.factors, rank=low.n, b=b, n=y.n, y=y,
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
