"""The text model of HunyuanOCR and HunyuanVL (Tencent, 2025): as hunyuan-dense, with XD-RoPE for the rows of images."""

from localinfer.graph.attention import xd_rope
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As Llama, with normalized heads."""
    build_decoder(g, DecoderSpec(attention=AttentionSpec(xd_rope(g), head_norm="after_rope")))
