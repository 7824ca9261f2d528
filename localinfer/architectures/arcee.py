"""AFM (Arcee AI, 2025): Llama with an ungated feed-forward network with squared ReLU."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As Llama, with another feed-forward network."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("interleaved")), activation="relu_squared", gated=False)
    build_decoder(g, spec)
