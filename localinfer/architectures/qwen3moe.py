"""Qwen3 MoE (Alibaba, 2025): as qwen3, with many small experts."""

from localinfer.graph.attention import with_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with normalized expert weights."""
    attention = with_window(g, AttentionSpec(g.rope("halves"), head_norm="before_rope"))
    build_decoder(g, DecoderSpec(attention=attention, router=read_router(g, normed=True)))
