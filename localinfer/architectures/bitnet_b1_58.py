"""BitNet b1.58 2B4T (Microsoft, 2025): as bitnet, with a gated squared ReLU."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """As bitnet, with `relu_squared` gates."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), activation="relu_squared", sub_norms=True)
    build_decoder(g, spec)
