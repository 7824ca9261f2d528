"""PaddleOCR-VL (Baidu, 2025): SigLIP on images of any size with rotary positions, too; squares of 2 x 2 patches."""

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.multimodal.encoder_graph import learned_positions, positions, row_order
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.transformer import activation, transform, two_layers
from localinfer.multimodal.encoders.arrangement import surround

ARCHITECTURES = ("paddleocr", "ernie4_5")
GRID_POSITIONS = True
MERGE = 2
arrange = surround("<|IMAGE_START|>", "<|IMAGE_END|>")


def build(g: EncoderBuilder) -> Buffer:
    """SigLIP with interpolated and rotary positions; a norm, the patches of each square side by side, two layers."""
    g.use_layer_norm()
    x = g.embed_patches(g.resample(learned_positions.of_square_grid(g), "linear"))
    angles = positions.half_and_half_angles(g.grid, g.heads.key)
    transform(g, x, activation(g), AttentionSpec(g.attention.rotation("halves", angles)))
    x = g.default_layer_norm(g.norm(x, "v.post_ln"), "mm.input_norm")
    x = g.gather(x, row_order.blocks(g.grid, g.merge_size("spatial_merge_size", MERGE)))
    return two_layers(g, x, "mm.1", "mm.2", "gelu_erf")
