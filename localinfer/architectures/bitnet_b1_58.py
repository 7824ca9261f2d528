"""BitNet b1.58 2B4T (Microsoft, 2025): as bitnet, with a gated squared ReLU."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As bitnet, with `relu_squared` gates."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), activation="relu_squared", sub_norms=True)
    build_decoder(g, spec)
