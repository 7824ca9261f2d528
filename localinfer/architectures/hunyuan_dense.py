"""Hunyuan (Tencent, 2025), the dense models: as Llama, with NeoX-style RoPE and heads normalised after RoPE."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """As Llama, with normalised heads."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), head_norm="after_rope")
    build_decoder(g, spec)
