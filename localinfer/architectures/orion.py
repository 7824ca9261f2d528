"""Orion (OrionStar, 2024): Llama with LayerNorms and NeoX-style rotary embeddings."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As Llama, with other norms."""
    g.use_layer_norm()
    build_decoder(g, DecoderSpec(attention=AttentionSpec(g.rope("halves"))))
