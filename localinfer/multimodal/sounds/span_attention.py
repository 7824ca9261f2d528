"""Attention to spans of rows in float32, without a cache. Scores may depend on the distance of two rows, by vectors
for each distance."""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from localinfer.gguf.reader import Tensor
from localinfer.graph.ops.buffers import Buffer, Region, Rows
from localinfer.graph.ops.cost import Cost, CostModel
from localinfer.graph.properties.attention import AttentionHeads
from localinfer.kernels.signatures import RELATIVE_ATTENTION, TRANSPOSE
from localinfer.multimodal.encoder_graph.bounds import check_head_size, check_length, check_spans
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats
from localinfer.multimodal.encoder_graph.row_order import Indices

LANES = 16  # rows that the kernel scores at once, also some before and after those of a span


class Spans(NamedTuple):
    """The first and the last row, of `n_rows`, that each row attends to. Row j has position vector `first` + j - i for
    row i, of `n_vectors`; there are none if this is 0."""

    oldest: Indices
    newest: Indices
    n_rows: int
    first: int = 0
    n_vectors: int = 0


def all_rows(count: int) -> Spans:
    """Return the spans in which each of `count` rows attends to all of them. Position vectors are in the order of
    distances i - j from the largest to the smallest."""
    oldest, newest = (np.full(count, row, np.int32) for row in (0, count - 1))
    return Spans(oldest, newest, count, count - 1, 2 * count - 1)


def blocks_of_rows(count: int, size: int) -> Spans:
    """Return the spans in which rows attend to those of their block of `size` rows; the last block may be smaller.
    Position vectors are in the order of distances i - j from the largest to the smallest."""
    oldest = np.arange(count, dtype=np.int32) // size * size
    return Spans(oldest, np.minimum(oldest + size, count).astype(np.int32) - 1, count, size - 1, 2 * size - 1)


def windows_of_rows(count: int, n_queries: int, size: int) -> Spans:
    """Return the spans in which `n_queries` consecutive rows attend to the `size` rows of their window, for all of
    `count` windows, without position vectors."""
    oldest = np.repeat(np.arange(count, dtype=np.int32) * size, n_queries)
    return Spans(oldest, oldest + np.int32(size - 1), count * size)


@dataclass(frozen=True, eq=False)
class SpanAttention:
    """What the attention of all layers shares."""

    g: EncoderBuilder
    heads: AttentionHeads
    spans: Spans
    oldest: Region
    newest: Region
    key_rows: Rows
    vector_rows: Rows

    @classmethod
    def make(cls, g: EncoderBuilder, heads: AttentionHeads, spans: Spans) -> Self:
        """Return the attention of rows to these spans. Raises LocalInferError for spans with rows or vectors that do
        not exist, UnsupportedError for a head size that kernels cannot process."""
        check_head_size(g.f, heads, LANES)
        check_spans(g.f, spans.oldest, spans.newest, spans.n_rows)
        constants = g.constants.region(spans.oldest), g.constants.region(spans.newest)
        n = heads.count * heads.key
        return cls(g, heads, spans, *constants, g.rows(n), g.rows(n))

    @property
    def width(self) -> int:
        """The largest number of rows that a row attends to."""
        return int((self.spans.newest - self.spans.oldest).max()) + 1

    def attend(
        self, name: str, qkv: tuple[Buffer, Buffer, Buffer], vectors: Buffer | Floats | None = None, *,
        scale: float = 0.0, cap: float = 0.0, biases: tuple[Tensor | int, Tensor | int] = (0, 0),
    ) -> Buffer:  # fmt: skip
        """Return the attention of queries to keys and values, (rows, heads * size). Scores are multiplied by `scale`, 0
        for one through the square root of the size of a head. `biases` are added to the queries that keys and position
        vectors are multiplied by. Position vectors are rows of all heads, computed by the graph, or constant ones of
        one head, (n_vectors, size), that heads share."""
        g, heads, (q, k, v), spans = self.g, self.heads, qkv, self.spans
        n = heads.count * heads.key
        for buffer, count in ((q, len(spans.oldest)), (k, spans.n_rows), (v, spans.n_rows)):
            check_length(g.f, buffer, n, count)
        keys = g.graph.buffer(padded(spans.n_rows + LANES), self.key_rows)
        self._transpose(k, keys, 0)
        columns, stride = self._columns(vectors)
        y = g.graph.buffer(n, q.rows)
        g.graph.need_scratch(8 * heads.key + 4 * (self.width + 2 * LANES))
        g.graph.op(
            f"{name}attention", RELATIVE_ATTENTION, y.rows, chunks=(1, 8),
            cost=CostModel(token=Cost(fmas=(2 if vectors is None else 3) * self.width * n)), q=q, bias_u=biases[0],
            bias_v=biases[1], k=keys, k_stride=keys.n, v=v, p=columns, p_stride=stride,
            p_step=heads.key if isinstance(vectors, Buffer) else 0, first=LANES + spans.first, oldest=self.oldest,
            newest=self.newest, heads=heads.count, size=heads.key, scale=scale or heads.key**-0.5, cap=cap, y=y,
        )  # fmt: skip
        g.point(y, f"{name}attn_heads" if name.endswith(".") else f"{name}_heads")
        return y

    def _columns(self, vectors: Buffer | Floats | None) -> tuple[Buffer | Region | int, int]:
        """Return the transpose of position vectors, and the length of its rows. The kernel reads some values before and
        after those of a span."""
        g, spans = self.g, self.spans
        if vectors is None:
            return 0, 0
        distances = spans.oldest - np.arange(len(spans.oldest)), spans.newest - np.arange(len(spans.oldest))
        check_spans(g.f, distances[0] + spans.first, distances[1] + spans.first, spans.n_vectors)
        stride = padded(spans.n_vectors + 3 * LANES)
        if isinstance(vectors, Buffer):
            check_length(g.f, vectors, self.heads.count * self.heads.key, spans.n_vectors)
            columns = g.graph.buffer(stride, self.vector_rows)
            self._transpose(vectors, columns, LANES)
            return columns, stride
        assert vectors.shape == (spans.n_vectors, self.heads.key)
        return g.constants.region(np.pad(vectors.T, ((0, 0), (LANES, stride - LANES - spans.n_vectors)))), stride

    def _transpose(self, x: Buffer, y: Buffer, first: int) -> None:
        """Write the transpose of x to y, in the columns from `first` on."""
        self.g.graph.op("transpose", TRANSPOSE, x.rows, chunks=(1, 8), x=x, n=x.n, first=first, y=y, y_n=y.n)


def padded(length: int) -> int:
    """Return the next multiple of LANES."""
    return -(-length // LANES) * LANES
