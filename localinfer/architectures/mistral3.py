"""Mistral Small 3 and Ministral 3 (Mistral AI, 2025): as Llama, with YaRN and attention temperature scaling."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """As Llama."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("interleaved")))
    build_decoder(g, spec)
