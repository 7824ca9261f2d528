"""Alternating updates (AltUp; Baykal et al., 2023): several residual streams; the layers only compute with the first.

The kernels are in `localinfer.kernels.altup`.
"""

from localinfer.graph.builder import AltUpStreams, Builder
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.graph.properties.model_properties import Block
from localinfer.graph.properties.tensors import matrix_slice
from localinfer.graph.recording import matrix_products
from localinfer.kernels.signatures import ADD_TO_INACTIVE, COPY, CORRECT, MATCH_RMS, PREDICT


class AltUpRecorder(AltUpStreams[Buffer]):
    """Records operations on the residual streams, [token][stream][n_embd]. The first is x; the others are
    altup_proj . x, scaled to the RMS of x."""

    def __init__(self, g: Builder[Buffer], graph: ComputeGraph, x: Buffer, count: int) -> None:
        self._g, self._graph, self._count, self._n = g, graph, count, x.n
        matrices = g.tensors.tensor("altup_proj.weight", count - 1, x.n, x.n)
        self.streams, self.predicted = self._graph.buffer(count * x.n), self._graph.buffer(count * x.n)
        self._copy(x, self.streams)
        for number in range(1, count):
            with self._graph.reuse_buffers():
                y = self._match_rms(matrix_products.matmul(self._graph, x, matrix_slice(matrices, number - 1)), x)
                self._copy(y, self.streams, y_first=number * x.n)

    def predict(self, blk: Block) -> Buffer:
        first = self._graph.buffer(self._n)
        self._copy(self.streams, first)
        m, weight = self._modalities(blk, first), f"{blk}altup_predict_coef.weight"
        self._graph.need_scratch(4 * self._count**2)
        self._graph.op(
            f"{blk}predict", PREDICT, first.rows, chunks=(0, 8), x=self.streams, m=m, count=self._count, n=self._n,
            predicted=self.predicted, weight=self._g.tensors.floats(weight, self._count**2, self._count), first=first,
        )  # fmt: skip
        return first

    def correct(self, blk: Block, y: Buffer) -> Buffer:
        first, m, weight = self._graph.buffer(self._n), self._modalities(blk, y), f"{blk}altup_correct_coef.weight"
        self._graph.op(
            f"{blk}correct", CORRECT, y.rows, chunks=(0, 8), y=y, predicted=self.predicted, m=m, count=self._count,
            n=self._n, x=self.streams, weight=self._g.tensors.floats(weight, self._count, self._count), first=first,
            scale=self._g.tensors.vector(f"{blk}altup_correct_scale.weight", self._n),
        )  # fmt: skip
        return first

    def add_to_inactive(self, branch: Buffer) -> None:
        self._graph.op(
            "add",
            ADD_TO_INACTIVE,
            branch.rows,
            chunks=(0, 8),
            branch=branch,
            count=self._count,
            n=self._n,
            x=self.streams,
        )

    def merge(self) -> Buffer:
        n, first, y = self._n, self._graph.buffer(self._n), self._graph.buffer(self._n)
        matrices = self._g.tensors.tensor("altup_unembd_proj.weight", self._count - 1, n, n)
        self._copy(self.streams, first)
        self._copy(self.streams, y)
        for number in range(1, self._count):
            with self._graph.reuse_buffers():
                other = self._graph.buffer(n)
                self._copy(self.streams, other, x_first=number * n)
                product = matrix_products.matmul(self._graph, other, matrix_slice(matrices, number - 1))
                self._g.add(y, self._match_rms(product, first))
        self._g.scale(y, 1 / self._count)
        return y

    def _modalities(self, blk: Block, x: Buffer) -> Buffer:
        """Return the router's coefficients in [-1, 1], one per stream and token."""
        m = self._g.matmul(self._g.norm(x, f"{blk}altup_router_norm"), f"{blk}altup_router", self._count)
        self._g.soft_cap(m, 1 / x.n, 1.0)
        return m

    def _copy(self, x: Buffer, y: Buffer, *, x_first: int = 0, y_first: int = 0) -> None:
        """Copy as many values of each row as the narrower buffer has."""
        self._graph.op(
            "copy", COPY, x.rows, chunks=(0, 8), x=x, x_n=x.n, x_first=x_first, n=min(x.n, y.n), y=y, y_n=y.n,
            y_first=y_first,
        )  # fmt: skip

    def _match_rms(self, y: Buffer, x: Buffer) -> Buffer:
        """Scale y to the RMS of x."""
        self._graph.op("match_rms", MATCH_RMS, x.rows, chunks=(0, 8), x=x, n=x.n, y=y)
        return y
