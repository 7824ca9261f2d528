"""OpenELM (Apple, 2024): as qwen3, with other numbers of heads and other lengths of the feed-forward network in each
layer."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """Decoder with fused queries, keys and values."""
    build_decoder(g, DecoderSpec(attention=AttentionSpec(g.rope("halves"), head_norm="before_rope")))
