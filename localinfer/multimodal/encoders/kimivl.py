"""Kimi-VL (Moonshot AI, 2025): MoonViT on images of any size with learned and rotary positions, squares of 2 x 2
patches."""

import numpy as np

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.multimodal.encoder_graph import learned_positions, positions, row_order
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats
from localinfer.multimodal.encoder_graph.transformer import activation, transform, two_layers
from localinfer.multimodal.encoders.arrangement import surround

ARCHITECTURES = ("deepseek2",)
arrange = surround("<|media_start|>image<|media_content|>", "<|media_end|>")


def build(g: EncoderBuilder) -> Buffer:
    """A transformer; a norm of each patch, the patches of each square side by side, two layers."""
    return build_squares(g, learned_positions.of_square_grid(g), alternating_angles(g))


def build_squares(g: EncoderBuilder, learned: Floats, angles: positions.Doubles) -> Buffer:
    """Build the encoder with learned positions, (rows, columns, n), and the angles of the pairs of a head."""
    g.use_layer_norm()
    squares = row_order.blocks(g.grid, g.merge_size("projector.scale_factor", 2))
    x = g.embed_patches(g.resample(learned, "cubic"))
    transform(g, x, activation(g), AttentionSpec(g.attention.rotation("interleaved", angles)))
    x = g.gather(g.default_layer_norm(g.norm(x, "v.post_ln"), "mm.input_norm"), squares)
    return two_layers(g, x, "mm.1", "mm.2", "gelu_erf")


def alternating_angles(g: EncoderBuilder) -> positions.Doubles:
    """Return the angles of the pairs of a head: of two neighbours with the same frequency, the first belongs to the
    column of a patch, the second to its row."""
    each = positions.frequencies(g.heads.key // 2)
    rows, columns = positions.grid_positions(g.grid)
    return np.stack([columns[:, None] * each, rows[:, None] * each], 2).reshape(len(rows), -1)
