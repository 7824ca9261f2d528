"""Nemotron Nano 2 VL (NVIDIA, 2025): RADIO (Heinrich et al., 2025) on tiles of one size with class and register rows,
pixel shuffle."""

import numpy as np

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph import learned_positions, row_order
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.transformer import activation, transform, two_layers
from localinfer.multimodal.encoders.arrangement import enclose

ARCHITECTURES = ("nemotron_h", "nemotron_h_moe")
CLASS_ROWS = True
EPSILON = 1e-5  # of the projector's norm
arrange = enclose("<img>", "</img>", overview_last=True)


def build(g: EncoderBuilder) -> Buffer:
    """A transformer, whose class and register rows have no positions; the patches of each square side by side, RMSNorm,
    two layers."""
    g.use_layer_norm()
    size, n_other = g.merge_size("projector.scale_factor", 2), g.graph.batch - g.n_patches
    x = g.embed_patches(np.pad(learned_positions.of_rows(g, g.n_patches), ((n_other, 0), (0, 0))))
    transform(g, x, activation(g, "gelu_erf"))
    x = g.gather(x, row_order.blocks(g.grid, size) + n_other)
    x = g.norm_groups(x, x.n, "mm.model.mlp.0.weight", eps=EPSILON)
    return two_layers(g, x, "mm.model.mlp.1", "mm.model.mlp.3", "relu_squared")
