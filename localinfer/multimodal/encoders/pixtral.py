"""Pixtral (Mistral AI, 2024) and Mistral Small 3: images of any size, rotary embeddings in two dimensions, a token at
the end of each row of the image but the last."""

import numpy as np

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.multimodal.encoder_graph import positions, row_order
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.matrices import n_rows_of
from localinfer.multimodal.encoder_graph.transformer import activation, transform, two_layers
from localinfer.multimodal.encoders.arrangement import surround

ARCHITECTURES = ("llama", "mistral3", "mistral4")
BREAK = "v.token_embd.img_break"
arrange = surround("", "[IMG_END]")


def build(g: EncoderBuilder) -> Buffer:
    """A transformer; squares of patches become one row if the file has a patch merger."""
    size = g.merge_size("spatial_merge_size", 1)
    x = g.norm(g.embed_patches(), "v.pre_ln")
    rope = g.attention.rotation("interleaved", alternating_angles(g))
    transform(g, x, activation(g, "gelu_erf"), AttentionSpec(rope))
    if g.tensors.has("mm.patch_merger.weight"):
        x = g.gather(g.norm(x, "mm.input_norm"), row_order.blocks(g.grid, size))
        n = x.n // size**2
        x = g.product(x, g.tensors.columns_by_patch("mm.patch_merger.weight", n_rows_of(g, "mm.patch_merger"), n, size))
    if not g.tensors.has(BREAK):
        return two_layers(g, x, "mm.1", "mm.2", "gelu_erf")
    return with_breaks(g, x, (g.grid[0] // size, g.grid[1] // size))


def alternating_angles(g: EncoderBuilder) -> positions.Doubles:
    """Return the angles of the pairs of a head: the first half of the pairs has every other frequency and belongs to
    the row of a patch, the second half has the rest and belongs to its column."""
    all_frequencies = positions.frequencies(g.heads.key, g.hparams.positive("rope.freq_base", 10_000.0))
    axes = zip(positions.grid_positions(g.grid), (all_frequencies[::2], all_frequencies[1::2]), strict=True)
    return np.concatenate([at[:, None] * frequencies for at, frequencies in axes], 1)


def with_breaks(g: EncoderBuilder, x: Buffer, grid: tuple[int, int]) -> Buffer:
    """Return the projected rows, with the embedding of [IMG_BREAK] after each row of the grid but the last."""
    rows, columns = grid
    n, count = g.output_length, rows * columns
    projected = g.graph.buffer(n, g.rows(count + 1))
    two_layers(g, x, "mm.1", "mm.2", "gelu_erf", n_out=n, out=projected)
    g.constants.set_rows(projected, count, g.tensors.values(BREAK, n))
    numbers = np.full((rows, columns + 1), count)
    numbers[:, :columns] = np.arange(count).reshape(rows, columns)
    return g.gather(projected, numbers.reshape(-1)[:-1])
