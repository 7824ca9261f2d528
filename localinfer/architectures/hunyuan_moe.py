"""Hunyuan MoE (Tencent, 2025): as hunyuan-dense, with a mixture of experts and a shared expert."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with normalized expert weights."""
    attention = AttentionSpec(g.rope("halves"), head_norm="after_rope")
    build_decoder(g, DecoderSpec(attention=attention, router=read_router(g, normed=True)))
