"""Qwen2 and Qwen2.5 (Alibaba, 2024): as Llama, with QKV biases and NeoX-style RoPE."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """As Llama, with biases."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), qkv_bias=True)
    build_decoder(g, spec)
