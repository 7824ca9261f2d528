"""Rows of zeros behind those of a buffer, for ops that read beyond the end of an image or a sound."""

from localinfer.graph.ops.buffers import Buffer, Rows
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.row_order import consecutive


def with_zero_rows(g: EncoderBuilder, x: Buffer, n_zeros: int = 1, *, rows: Rows | None = None) -> Buffer:
    """Return the rows of x and rows of zeros behind them, which no op writes. Call it outside of layers, or with `rows`
    that only such buffers have, as many as x has and further ones."""
    count = x.rows.capacity
    return g.gather(x, consecutive((count,)), out=g.graph.buffer(x.n, rows or g.rows(count + n_zeros)))
