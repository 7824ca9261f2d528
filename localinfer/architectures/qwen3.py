"""Qwen3 (Alibaba, 2025): as qwen2, with normalized heads of queries and keys, and without biases."""

from localinfer.graph.attention import with_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As Llama, with normalized heads."""
    build_decoder(g, DecoderSpec(attention=with_window(g, AttentionSpec(g.rope("halves"), head_norm="before_rope"))))
