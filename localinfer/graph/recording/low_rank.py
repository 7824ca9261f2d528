"""Records the low-rank changes of LoRA adapters beside the products of a model: see
`localinfer.graph.properties.adapters`.
"""

from localinfer.graph.ops.buffers import Buffer, Region
from localinfer.graph.properties.adapters import LowRankChange
from localinfer.graph.properties.tensors import row_slice
from localinfer.graph.recording.matrix_products import matmul
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.kernels.signatures import SCALE_LOW_RANK


def add_low_rank(
    model: ModelGraph, x: Buffer, y: Buffer, change: LowRankChange, first: int = 0, *, barrier: bool = True
) -> None:
    """Add the change of a product with x to its rows `first` on, y.

    The product itself may be without a barrier: the first op here does not read it, and has one.
    """
    low = matmul(model.graph, x, change.a)
    add_scaled(model, low, y, change, first, barrier=barrier)


def add_scaled(
    model: ModelGraph, low: Buffer, y: Buffer, change: LowRankChange, first: int = 0, *, barrier: bool = True
) -> None:
    """Add B low to y, where `low` is A x, which is scaled in place."""
    graph = model.graph
    order = model.output_indices if low.rows is graph.output_rows else None
    scale_rows(model, low, change, order)
    matmul(graph, low, row_slice(change.b, first, y.n), add_to=y, barrier=barrier)


def scale_rows(
    model: ModelGraph, low: Buffer, change: LowRankChange, order: Region | None = None, used: int = 1, *,
    barrier: bool = True,
) -> None:  # fmt: skip
    """Multiply each row by the scales of its token. The token of a row is order[row] // used, or the row's number."""
    model.graph.op(
        f"{change.a.name.removesuffix('_a')}.scale", SCALE_LOW_RANK, low.rows, chunks=(0, 8), barrier=barrier,
        order=order or 0, used=used, scales=model.adapter_scales, count=model.n_adapters, owners=change.owners,
        factors=change.factors, n=low.n, x=low,
    )  # fmt: skip
