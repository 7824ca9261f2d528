"""Jais 2 (Inception and MBZUAI, 2025): LayerNorms, an ungated feed-forward network with squared ReLU, biases
everywhere."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As nemotron, with rotary embeddings on whole heads."""
    g.use_layer_norm()
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), activation="relu_squared", gated=False)
    build_decoder(g, spec)
