"""Qwen (Alibaba, 2023), the first generation: Llama with fused queries, keys and values, which have biases."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As Llama. The file's feed-forward length counts the rows of gate and up together."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), qkv_bias=True, length_counts_gate=True)
    build_decoder(g, spec)
