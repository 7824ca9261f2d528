"""MiniMax-M3 (MiniMax, 2026): images of any size, rotary embeddings in three dimensions, squares of 2 x 2 patches."""

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.multimodal.encoder_graph import positions, row_order
from localinfer.multimodal.encoder_graph.encoder_builder import FRAMES, EncoderBuilder
from localinfer.multimodal.encoder_graph.transformer import activation, transform, two_layers
from localinfer.multimodal.encoders.arrangement import surround

ARCHITECTURES = ("minimax-m3",)
arrange = surround("]<]start of image[>[", "]<]end of image[>[")


def build(g: EncoderBuilder) -> Buffer:
    """A transformer on patches in the order of squares; two layers for each patch, and two for those of a square."""
    g.use_layer_norm()
    squares = row_order.blocks(g.grid, g.merge_size("spatial_merge_size", 2))
    x = g.norm(g.embed_patches(order=squares, convolutions=FRAMES), "v.pre_ln")
    angles = positions.thirds_angles(g.grid, g.heads.key)[squares.reshape(-1)]
    transform(g, x, activation(g, "gelu_erf"), AttentionSpec(g.attention.rotation("sixths", angles)))
    x = g.gather(two_layers(g, x, "mm.1", "mm.2", "gelu_erf"), row_order.consecutive(squares.shape))
    return two_layers(g, x, "mm.merger.fc1", "mm.merger.fc2", "gelu_erf")
