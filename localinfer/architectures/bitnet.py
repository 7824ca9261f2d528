"""BitNet b1.58 (Ma et al., 2024): Llama with ternary weights and sub-norms before the last matrix of each branch."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """The first BitNet models, as llama.cpp computes them."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), sub_norms=True)
    build_decoder(g, spec)
