"""Hunyuan (Tencent, 2025), the dense models: as Llama, with NeoX-style RoPE and heads normalized after RoPE."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As Llama, with normalized heads."""
    build_decoder(g, DecoderSpec(attention=AttentionSpec(g.rope("halves"), head_norm="after_rope")))
