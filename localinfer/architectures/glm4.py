"""GLM-4 (Zhipu AI, 2025): norms before and after each branch, fused gate and up matrices, RoPE on half of each head.
The text model of GLM-4.1V has M-RoPE."""

from localinfer.graph.attention import rope_of_file
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import POST_NORMS, DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """Biases are used where the file has them."""
    attention = AttentionSpec(rope_of_file(g, "interleaved"))
    build_decoder(g, DecoderSpec(attention=attention, post_norms=POST_NORMS, mtp_states="normed"))
