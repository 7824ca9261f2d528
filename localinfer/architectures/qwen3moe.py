"""Qwen3 MoE (Alibaba, 2025): as qwen3, with many small experts."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """Decoder with normalised expert weights."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), head_norm="before_rope", router=g.router(normed=True))
    build_decoder(g, spec)
