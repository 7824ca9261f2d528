"""Maincoder (Maincode, 2025): Llama with normalized heads of queries and keys, after their rotation."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As Llama, with norms of heads."""
    build_decoder(g, DecoderSpec(attention=AttentionSpec(g.rope("interleaved"), head_norm="after_rope")))
