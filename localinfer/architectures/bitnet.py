"""BitNet b1.58 (Ma et al., 2024): Llama with ternary weights and sub-norms before the last matrix of each branch."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """The first BitNet models, as llama.cpp computes them."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), sub_norms=True)
    build_decoder(g, spec)
