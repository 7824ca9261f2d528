"""Seed-OSS (ByteDance, 2025): as qwen2; the norm before the feed-forward network has another name."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder

NORMS = {"attention": "attn_norm", "feed_forward": "post_attention_norm"}


def build(g: Builder[X]) -> None:
    """As Llama."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), pre_norms=NORMS)
    build_decoder(g, spec)
