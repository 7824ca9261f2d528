"""Qwen2 and Qwen2.5 (Alibaba, 2024): as Llama, with QKV biases and NeoX-style RoPE."""

from localinfer.graph.attention import with_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As Llama, with biases."""
    spec = DecoderSpec(attention=with_window(g, AttentionSpec(g.rope("halves"))), qkv_bias=True)
    build_decoder(g, spec)
