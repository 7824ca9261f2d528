"""ERNIE 4.5 (Baidu, 2025), the dense models: as Llama."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """As Llama."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("interleaved")))
    build_decoder(g, spec)
