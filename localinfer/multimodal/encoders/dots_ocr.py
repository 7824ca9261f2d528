"""dots.ocr (rednote, 2025): as Qwen2-VL, with RMSNorm and gated networks, and a norm of the patches."""

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.multimodal.encoder_graph import positions, row_order
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.transformer import activation, transform, two_layers
from localinfer.multimodal.encoders.arrangement import surround

ARCHITECTURES = ("qwen2",)
MERGER_EPSILON = 1e-6
arrange = surround("<|img|>", "<|endofimg|>")


def build(g: EncoderBuilder) -> Buffer:
    """A transformer on patches in the order of squares; a norm, the patches of each square side by side, two layers."""
    squares = row_order.blocks(g.grid, g.merge_size("projector.scale_factor"))
    x = g.norm(g.embed_patches(order=squares), "v.pre_ln")
    angles = positions.half_and_half_angles(g.grid, g.heads.key)[squares.reshape(-1)]
    transform(g, x, activation(g), AttentionSpec(g.attention.rotation("halves", angles)))
    x = g.default_layer_norm(g.norm(x, "mm.post_norm"), "mm.input_norm", MERGER_EPSILON)
    return two_layers(g, g.gather(x, row_order.consecutive(squares.shape)), "mm.0", "mm.2", "gelu_erf")
