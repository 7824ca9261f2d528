"""InternLM2 (Shanghai AI Laboratory, 2024): Llama whose checkpoints store queries, keys and values as one matrix."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """As Llama."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("interleaved")))
    build_decoder(g, spec)
