"""Phi-3 and Phi-4 (Microsoft, 2024): as Llama, with fused QKV and fused gate and up matrices. If there is a sliding
window, all layers have it."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """RoPE is scaled by LongRoPE if the file has its factors."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves"), g.sliding_window()))
    build_decoder(g, spec)
