"""OLMoE (Muennighoff et al., 2024): norms over whole rows of queries and keys, and many small experts."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """Expert weights are the probabilities, not normalised."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), row_norm=True, router=g.router())
    build_decoder(g, spec)
