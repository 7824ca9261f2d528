"""Learned position embeddings of the file."""

from math import isqrt

from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats

POSITIONS = "v.position_embd.weight"


def has_positions(g: EncoderBuilder) -> bool:
    """Return whether the file has learned positions."""
    return g.tensors.has(POSITIONS)


def of_all_rows(g: EncoderBuilder) -> Floats:
    """Return the position embeddings of the class rows and of images of one size, (rows, n)."""
    return of_rows(g, g.graph.batch)


def of_rows(g: EncoderBuilder, count: int) -> Floats:
    """Return the position embeddings of this number of rows, (count, n), which must be all."""
    return g.tensors.single(POSITIONS, count, g.embedding_length)


def of_square_grid(g: EncoderBuilder) -> Floats:
    """Return the position embeddings of a square grid, (rows, columns, n), to be interpolated."""
    tensor = g.f.tensors.get(POSITIONS)
    side = isqrt(tensor.shape[0]) if tensor else 0
    return g.tensors.values(POSITIONS, side**2, g.embedding_length).reshape(side, side, -1)


def of_grid(g: EncoderBuilder) -> Floats:
    """Return the position embeddings of a grid, (rows, columns, n), which the file has in this shape."""
    tensor = g.f.tensors.get(POSITIONS)
    shape = tensor.shape[:-1] if tensor and len(tensor.shape) == 3 else (0, 0)
    return g.tensors.values(POSITIONS, *shape, g.embedding_length)
