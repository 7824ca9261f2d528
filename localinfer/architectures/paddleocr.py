"""The text model of PaddleOCR-VL (Baidu, 2025): as ernie4_5, with M-RoPE for the rows of images."""

from localinfer.graph.attention import mrope
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As Llama, with NeoX-style RoPE."""
    build_decoder(g, DecoderSpec(attention=AttentionSpec(mrope(g))))
