"""Llama (Touvron et al., 2023) and its relatives: Mistral, SmolLM2, TinyLlama, Yi, ...; Mixtral (Jiang et al., 2024)
has experts."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """Pre-norm attention and a SwiGLU feed-forward network on a residual stream."""
    spec = DecoderSpec(
        attention=AttentionSpec(g.rope("interleaved")), router=g.router(normed=True) if g.has_experts else None
    )
    build_decoder(g, spec)
