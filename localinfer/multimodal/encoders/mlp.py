"""LLaVA 1.5 (Liu et al., 2023): CLIP (Radford et al., 2021) on images of one size, and two layers."""

import numpy as np

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph import learned_positions
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.transformer import activation, transform, two_layers
from localinfer.multimodal.encoders.arrangement import surround

ARCHITECTURES = ()
HAS_PROJECTION_DIM = False  # files have that of CLIP, which the model does not use
arrange = surround("", "")


def build(g: EncoderBuilder) -> Buffer:
    """CLIP, whose last layers the file lacks; the rows of the patches, and two layers."""
    g.use_layer_norm()
    x = g.embed_patches(learned_positions.of_all_rows(g))
    if g.tensors.has("v.pre_ln.weight"):
        x = g.norm(x, "v.pre_ln")
    transform(g, x, activation(g, "gelu_erf"), n_layers=feature_layer(g))
    if g.tensors.has("v.post_ln.weight"):
        x = g.norm(x, "v.post_ln")
    x = g.gather(x, g.patch_rows())
    return two_layers(g, x, "mm.0", "mm.2", "gelu_erf")


def feature_layer(g: EncoderBuilder) -> int:
    """Return the number of layers whose output the model reads: that of the file, or all."""
    key = "feature_layer"
    layers = g.f.get(g.hparams.full_name(key), np.ndarray, None)
    if layers is None:
        return g.block_count
    if len(layers) != 1 or not 1 <= int(layers[0]) <= g.block_count:
        raise g.hparams.unsupported(key, layers.tolist())
    return int(layers[0])
