"""Muse Glimmer (Meta, 2026): images of any size, rotary embeddings in two dimensions, attention to windows in most
layers, squares of 2 x 2 patches."""

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.multimodal.encoder_graph import learned_positions, positions, row_order
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.matrices import n_rows_of
from localinfer.multimodal.encoder_graph.transformer import transform, two_layers
from localinfer.multimodal.encoders.arrangement import surround

ARCHITECTURES = ("muse-glimmer",)
PERIOD = 4  # the last layer of each group of this many attends to all patches, and so does the last layer
arrange = surround("<|image_start|>", "<|image_end|>")


def build(g: EncoderBuilder) -> Buffer:
    """A transformer on patches in the order of windows; the values of the patches of a square one by one, three layers.

    Windows are as large as the table of positions. The positions are those of a grid with rows and columns exchanged,
    as the model was trained with them; there are zeros beyond the table.
    """
    g.use_layer_norm()
    size, table = g.merge_size("spatial_merge_size", 2), learned_positions.of_square_grid(g)
    order, lengths = row_order.windows(g.grid, len(table))
    learned = g.resample(table, "linear", (g.grid[1], g.grid[0]), zeros_beyond=True)
    x = g.norm(g.embed_patches(learned, order=order), "v.pre_ln")
    angles = positions.half_and_half_angles(g.grid, g.heads.key, columns_first=True)[order]
    window, n = g.attention.add_windows(lengths), g.block_count
    windows = [0 if number % PERIOD == 0 or number == n else window for number in range(1, n + 1)]
    transform(g, x, "gelu_erf", AttentionSpec(g.attention.rotation("interleaved", angles)), windows=windows)
    squares = row_order.inverse(order)[row_order.blocks(g.grid, size)]
    x, n_hidden = g.gather(g.norm(x, "v.post_ln"), squares), n_rows_of(g, "mm.0")
    first = g.tensors.columns_by_patch("mm.0.weight", n_hidden, g.embedding_length, size)
    return two_layers(g, g.gate(g.product(x, first), None, "gelu_erf"), "mm.1", "mm.2", "gelu_erf")
