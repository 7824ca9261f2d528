"""Qwen3 (Alibaba, 2025): as qwen2, with normalised heads of queries and keys, and without biases."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """As Llama, with normalised heads."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), head_norm="before_rope")
    build_decoder(g, spec)
