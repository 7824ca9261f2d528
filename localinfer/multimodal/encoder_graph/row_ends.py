"""Rows of an image between learned rows that begin and end it."""

import numpy as np

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder


def with_ends(g: EncoderBuilder, x: Buffer, begin: str, end: str) -> Buffer:
    """Return the rows of x between those of two tensors."""
    count = x.rows.capacity
    rows = g.graph.buffer(x.n, g.rows(count + 2))
    g.gather(x, np.arange(count, dtype=np.int32), out=rows)
    for number, name in enumerate((begin, end)):
        g.constants.set_rows(rows, count + number, g.tensors.single(name, x.n))
    return g.gather(rows, np.array([count, *range(count), count + 1], np.int32))
