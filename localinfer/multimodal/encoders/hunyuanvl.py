"""HunyuanOCR and HunyuanVL (Tencent, 2025): images of any size, learned positions, convolutions over squares of
patches, and rows at the end of each line and around the image."""

from math import gcd

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph import learned_positions, row_order
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.matrices import n_rows_of
from localinfer.multimodal.encoder_graph.row_ends import with_ends
from localinfer.multimodal.encoder_graph.transformer import transform
from localinfer.multimodal.encoders.arrangement import surround

ARCHITECTURES = ("hunyuan_vl",)
UNUSED = "v.view_seperator"
NEWLINE, BEGIN, END = "v.image_newline", "mm.image_begin", "mm.image_end"
arrange = surround("<｜hy_place▁holder▁no▁100｜>", "<｜hy_place▁holder▁no▁101｜>")


def build(g: EncoderBuilder) -> Buffer:
    """A transformer with LayerNorm; a norm, two convolutions, of which the second one sees single rows, a matrix for
    the lines with their ends, and a norm of all rows."""
    g.use_layer_norm()
    g.tensors.accept(UNUSED)
    size = g.merge_size("spatial_merge_size", 2)
    squares, n = row_order.blocks(g.grid, size), g.embedding_length
    learned = g.resample(learned_positions.of_square_grid(g), "linear")
    x = g.embed_patches(learned, order=squares)
    transform(g, x, "gelu_erf")
    x = g.gather(g.norm_groups(x, n, "mm.pre_norm.weight"), row_order.consecutive(squares.shape))
    n_middle, n_line = n_rows_of(g, "mm.0"), n_rows_of(g, "mm.2")
    weight = g.tensors.columns_by_patch("mm.0.weight", n_middle, n, size)
    x = g.gate(g.product(x, weight, bias=g.tensors.bias("mm.0", n_middle)), None, "gelu_erf")
    weight = g.tensors.columns_by_patch("mm.2.weight", n_line, n_middle, 1)
    count = len(squares)
    ended = g.graph.buffer(n_line, g.rows(count + 1))
    g.product(x, weight, bias=g.tensors.bias("mm.2", n_line), out=ended)
    g.constants.set_rows(ended, count, g.tensors.values(NEWLINE, n_line))
    cells = row_order.consecutive((g.grid[0] // size, g.grid[1] // size))
    numbers = np.pad(cells, ((0, 0), (0, 1)), constant_values=count)
    rows = g.matmul(g.gather(ended, numbers.reshape(-1)), "mm.model.fc", g.output_length)
    return g.norm_groups(with_ends(g, rows, BEGIN, END), rows.n, "mm.post_norm.weight")


def coordinates(grid: tuple[int, int], n_rows: int) -> NDArray[np.int32]:
    """Return the column and the row of each of the rows of an image: those at the end of a line are the last column,
    those around the image have none, -1."""
    sizes = (size for size in range(1, gcd(*grid) + 1) if gcd(*grid) % size == 0)
    height, width = next(
        (grid[0] // size, grid[1] // size)
        for size in sizes
        if grid[0] // size * (grid[1] // size + 1) + 2 == n_rows
    )  # fmt: skip
    row, column = np.divmod(np.arange(height * (width + 1), dtype=np.int32), np.int32(width + 1))
    return np.pad(np.stack([column, row], 1), ((1, 1), (0, 0)), constant_values=-1)
