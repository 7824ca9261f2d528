"""Products whose input and output are clipped (Gemma 4): the bounds are tensors of one value beside the matrix, which
the file may lack."""

from typing import NamedTuple

import numpy as np

from localinfer.graph.ops.buffers import Buffer
from localinfer.kernels.signatures import CLIP
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.matrices import n_rows_of, padded_length, padded_product, product_of_padded
from localinfer.multimodal.encoder_graph.transformer import name_units

LARGEST = float(np.finfo(np.float32).max)


class Bounds(NamedTuple):
    """The least and the greatest value."""

    low: float
    high: float

    @property
    def is_unlimited(self) -> bool:
        return self.low <= -LARGEST and self.high >= LARGEST


def read_bounds(g: EncoderBuilder, matrix: str, kind: str) -> Bounds:
    """Return the bounds of the "input" or the "output" of a matrix. Raises LocalInferError if one is not a number."""
    values = []
    for name, default in (f"{matrix}.{kind}_min", -LARGEST), (f"{matrix}.{kind}_max", LARGEST):
        value = g.tensors.scalar(name) if g.tensors.has(name) else default
        if np.isnan(value):
            raise g.f.error(f"tensor {name}", "is not a number")
        values.append(value)
    return Bounds(*values)


def clipped(g: EncoderBuilder, x: Buffer, bounds: Bounds, *, in_place: bool = False) -> Buffer:
    """Return x within bounds: x itself if it has none."""
    if bounds.is_unlimited:
        return x
    y = x if in_place else g.graph.buffer(x.n, x.rows)
    g.graph.op("clip", CLIP, x.rows, x=x, low=bounds.low, high=bounds.high, n=x.n, y=y)
    return y


def clipped_product(g: EncoderBuilder, x: Buffer, name: str, rows: int, n: int = 0, *, n_in: int = 0) -> Buffer:
    """Return weight . x for a matrix with this number of rows, and with `n_in` columns if these are not those of x,
    with columns of zeros up to `n`. See `padded_product` and `product_of_padded`."""
    source = clipped(g, x, read_bounds(g, name, "input"))
    if n_in:
        y = product_of_padded(g, source, name, n_in, rows)
    else:
        y = padded_product(g, source, name, rows, n or rows)
    return clipped(g, y, read_bounds(g, name, "output"), in_place=True)


def clipped_network(g: EncoderBuilder, x: Buffer, names: tuple[str, ...], down: str, act: str, n_out: int) -> Buffer:
    """Return down . act(up . x), or down . (act(gate . x) * (up . x)). `names` are up, and gate if there is one."""
    rows = n_rows_of(g, names[0])
    n = padded_length(g, down, rows)
    up, *gates = (clipped_product(g, x, name, rows, n) for name in names)
    hidden = g.gate(gates[0], up, act) if gates else g.gate(up, None, act)
    name_units(g, hidden, down, rows)
    return clipped_product(g, hidden, down, n_out, n_in=rows)
