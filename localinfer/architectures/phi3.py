"""Phi-3 and Phi-4 (Microsoft, 2024): as Llama, with fused QKV and fused gate and up matrices. If there is a sliding
window, all layers have it."""

from localinfer.graph.attention import sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """RoPE is scaled by LongRoPE if the file has its factors."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves"), sliding_window(g)))
    build_decoder(g, spec)
