"""Qwen1.5 and Qwen2 MoE (Alibaba, 2024): as qwen2, with experts and a gated shared expert."""

from localinfer.graph.attention import with_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Expert weights are the probabilities, not normalized."""
    spec = DecoderSpec(attention=with_window(g, AttentionSpec(g.rope("halves"))), qkv_bias=True, router=read_router(g))
    build_decoder(g, spec)
