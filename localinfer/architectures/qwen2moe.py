"""Qwen1.5 and Qwen2 MoE (Alibaba, 2024): as qwen2, with experts and a gated shared expert."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """Expert weights are the probabilities, not normalised."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), qkv_bias=True, router=g.router())
    build_decoder(g, spec)
