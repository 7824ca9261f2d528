"""Apertus (EPFL, ETH Zurich and CSCS, 2025): Llama with normalized heads and an ungated feed-forward network with
xIELU, whose parameters each layer has learned."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.feed_forward import XIELU


def build(g: Builder[X]) -> None:
    """As Llama, with NeoX-style rotary embeddings."""
    attention = AttentionSpec(g.rope("halves"), head_norm="before_rope")
    build_decoder(g, DecoderSpec(attention=attention, activation=XIELU, gated=False))
