"""Attention with relative positions: scores depend on the distance of two rows, also by vectors for each distance."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from localinfer.gguf.reader import Tensor
from localinfer.graph.ops.buffers import Buffer, Region, Rows
from localinfer.graph.ops.cost import Cost, CostModel
from localinfer.kernels.signatures import RELATIVE_ATTENTION, TRANSPOSE
from localinfer.multimodal.encoder_graph.bounds import check_head_size, check_length, check_spans
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.row_order import Indices

LANES = 16  # rows that the kernel scores at once, also some before and after those of a span


@dataclass(frozen=True, eq=False)
class RelativeAttention:
    """What the attention of all layers shares: the rows that a row attends to, from `oldest` to `newest`, and the
    number of the position vector of row j for row i, `first` + j - i of `n_vectors`."""

    g: EncoderBuilder
    oldest: Region
    newest: Region
    first: int
    n_vectors: int
    width: int
    key_rows: Rows
    vector_rows: Rows

    @classmethod
    def make(cls, g: EncoderBuilder, oldest: Indices, newest: Indices, *, first: int, n_vectors: int,
             shared: bool = False) -> Self:  # fmt: skip
        """Return the attention of rows to these spans. Heads have own position vectors, or `shared` ones. Raises
        LocalInferError for spans with rows or vectors that do not exist, UnsupportedError for a head size that kernels
        cannot process."""
        heads = g.heads
        check_head_size(g.f, heads, LANES)
        check_spans(g.f, oldest, newest, first, n_vectors)
        key_rows = g.rows(heads.count * heads.key)
        return cls(
            g, g.constant(oldest), g.constant(newest), first, n_vectors, int((newest - oldest).max()) + 1, key_rows,
            g.rows(heads.key) if shared else key_rows,
        )  # fmt: skip

    @classmethod
    def of_all_rows(cls, g: EncoderBuilder) -> Self:
        """Return the attention of each row to all rows. Position vectors are in the order of distances i - j from the
        largest to the smallest."""
        count = g.graph.batch
        oldest, newest = (np.full(count, row, np.int32) for row in (0, count - 1))
        return cls.make(g, oldest, newest, first=count - 1, n_vectors=2 * count - 1)

    def attend(
        self, name: str, qkv: tuple[Buffer, Buffer, Buffer], vectors: Buffer, *, scale: float, cap: float = 0.0,
        biases: tuple[Tensor | int, Tensor | int] = (0, 0),
    ) -> Buffer:  # fmt: skip
        """Return the attention of queries to keys and values, (rows, heads * size). `biases` are added to the queries
        that keys and position vectors are multiplied by."""
        g, heads, (q, k, v) = self.g, self.g.heads, qkv
        for buffer in qkv:
            check_length(g.f, buffer, heads.count * heads.key, g.graph.batch)
        check_length(g.f, vectors, self.vector_rows.capacity, self.n_vectors)
        keys = self._transposed(k, self.key_rows, 0, LANES)
        columns = self._transposed(vectors, self.vector_rows, LANES, 3 * LANES)
        y = g.graph.buffer(q.n)
        g.graph.need_scratch(8 * heads.key + 4 * (self.width + 2 * LANES))
        g.graph.op(
            f"{name}attention", RELATIVE_ATTENTION, y.rows, chunks=(1, 8),
            cost=CostModel(token=Cost(fmas=3 * self.width * q.n)), q=q, bias_u=biases[0], bias_v=biases[1], k=keys,
            k_stride=keys.n, v=v, p=columns, p_stride=columns.n,
            p_step=0 if self.vector_rows is not self.key_rows else heads.key, first=LANES + self.first,
            oldest=self.oldest, newest=self.newest, heads=heads.count, size=heads.key, scale=scale, cap=cap, y=y,
        )  # fmt: skip
        return y

    def _transposed(self, x: Buffer, rows: Rows, first: int, extra: int) -> Buffer:
        """Return the transpose of x, whose rows begin `first` values later and have `extra` values, or a few more."""
        y = self.g.graph.buffer(-(-(x.rows.capacity + extra) // LANES) * LANES, rows)
        self.g.graph.op(
            "transpose", TRANSPOSE, x.rows, chunks=(1, 8), x=x, n=x.n, first=first, y=y, y_n=y.n
        )  # fmt: skip
        return y
