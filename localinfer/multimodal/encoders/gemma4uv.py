"""Gemma 4 12B (Google, 2026), which has no encoder: squares of 3 x 3 patches go through one matrix, learned positions
in two dimensions are added, and another matrix follows; with norms between all of these."""

import numpy as np

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph.encoder_builder import CHANNELS, EncoderBuilder, PatchInput
from localinfer.multimodal.encoder_graph.row_order import consecutive
from localinfer.multimodal.encoders import gemma4v

ARCHITECTURES, ANY_SIZE, HAS_LAYERS = gemma4v.ARCHITECTURES, True, False
arrange, is_bidirectional = gemma4v.arrange, gemma4v.is_bidirectional


def build(g: EncoderBuilder) -> Buffer:
    """The host gives whole squares of patches, whose pixels are from 0 to 1."""
    side, n = g.patch_size * g.hparams.count("projector.scale_factor", 3, maximum=64), g.embedding_length
    patches = g.graph.buffer(CHANNELS * side**2)
    g.input = PatchInput(patches, 0, consecutive((g.n_patches,)), patches, np.zeros((0, patches.n), np.float32))
    x = g.matmul(g.default_layer_norm(patches, "v.patch_norm.1"), "v.patch_embd", n)
    x = g.default_layer_norm(x, "v.patch_norm.2")
    g.add(x, g.constants.rows(gemma4v.position_rows(g)))
    x = g.default_layer_norm(x, "v.patch_norm.3")
    return g.matmul(g.norm_groups(x, n), "mm.input_projection", g.output_length)
