"""Ling 2.0 and Ring (inclusionAI, 2025): normalized heads, rotary embeddings on a part of each head, and many experts
in groups with a biased router. Queries, keys and values are fused."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with a sigmoid router, dense first layers and a shared expert."""
    attention = AttentionSpec(g.rope("halves"), head_norm="before_rope")
    build_decoder(g, DecoderSpec(attention=attention, router=read_router(g, "sigmoid")))
