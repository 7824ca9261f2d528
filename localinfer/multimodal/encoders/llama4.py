"""Llama 4 (Meta, 2025): tiles of one size with a class row, rotary embeddings in two dimensions, pixel shuffle."""

import numpy as np

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.multimodal.encoder_graph import learned_positions, positions, row_order
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.transformer import activation, transform, two_layers
from localinfer.multimodal.encoders.arrangement import enclose

ARCHITECTURES = ("llama4",)
CLASS_ROWS = True
arrange = enclose("<|image_start|>", "<|image_end|>", overview_last=True)


def build(g: EncoderBuilder) -> Buffer:
    """A transformer whose last row is the class row; the patches of each square side by side, three layers."""
    g.use_layer_norm()
    size = g.merge_size("projector.scale_factor", 2)
    x = g.norm(g.embed_patches(learned_positions.of_all_rows(g), class_last=True), "v.pre_ln")
    rows, columns = positions.grid_positions(g.grid)
    each = positions.frequencies(g.heads.key // 2)
    angles = np.concatenate([(columns[:, None] + 1) * each, (rows[:, None] + 1) * each], 1)
    angles = np.pad(angles, ((0, g.graph.batch - g.n_patches), (0, 0)))  # the class row is not rotated
    transform(g, x, activation(g, "gelu_erf"), AttentionSpec(g.attention.rotation("interleaved", angles)))
    x = g.gather(g.norm(x, "v.post_ln"), row_order.blocks(g.grid, size))
    x = g.gate(two_layers(g, x, "mm.model.mlp.1", "mm.model.mlp.2", "gelu_erf"), None, "gelu_erf")
    return g.matmul(x, "mm.model.fc", g.output_length)
