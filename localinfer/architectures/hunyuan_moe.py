"""Hunyuan MoE (Tencent, 2025): as hunyuan-dense, with a mixture of experts and a shared expert."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """Decoder with normalised expert weights."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), head_norm="after_rope", router=g.router(normed=True))
    build_decoder(g, spec)
