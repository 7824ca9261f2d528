"""Hunyuan 3 (Tencent, 2026): normalized heads, dense first layers, and many experts with a biased router and a shared
expert."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with a sigmoid router, whose weights are normalized and scaled as the metadata specifies."""
    attention = AttentionSpec(g.rope("halves"), head_norm="before_rope")
    router = read_router(g, "sigmoid", normed=True)
    build_decoder(g, DecoderSpec(attention=attention, router=router, mtp_states="normed"))
