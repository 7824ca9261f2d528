"""Seed-OSS (ByteDance, 2025): as qwen2; the norm before the feed-forward network has another name."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder

NORMS = {"attention": "attn_norm", "feed_forward": "post_attention_norm"}


def build(g: GraphBuilder) -> None:
    """As Llama."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), pre_norms=NORMS)
    build_decoder(g, spec)
