"""Kolibri 1 (Aleph Alpha, 2026): qwen3moe with norms before and after each branch, a biased router and a shared expert.
Full-attention layers, one in five, have no rotary embeddings."""

from localinfer.graph.attention import local_rope
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import POST_NORMS, DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router

PATTERN = 5


def build(g: Builder[X]) -> None:
    """The router chooses experts by biased logits, and weighs them by the sigmoid of those without the bias."""
    attention = local_rope(g, AttentionSpec(g.rope("halves"), head_norm="before_rope"), PATTERN)
    router = read_router(g, "sigmoid_of_chosen")
    build_decoder(g, DecoderSpec(attention=attention, post_norms=POST_NORMS, router=router))
