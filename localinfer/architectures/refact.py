"""Refact (Refact AI, 2023): Llama with ALiBi in place of rotary embeddings, and multi-query attention."""

from localinfer.graph.attention import alibi
from localinfer.graph.builder import Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder

MAX_ALIBI_BIAS = 8.0


def build(g: Builder[X]) -> None:
    """As Llama, with other positions."""
    build_decoder(g, DecoderSpec(attention=alibi(g, MAX_ALIBI_BIAS)))
