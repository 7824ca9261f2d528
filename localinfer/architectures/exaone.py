"""EXAONE 3 and 3.5 (LG, 2024): Llama with NeoX-style rotary embeddings."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As Llama, with another order of rotated pairs."""
    build_decoder(g, DecoderSpec(attention=AttentionSpec(g.rope("halves"))))
