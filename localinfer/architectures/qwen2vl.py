"""The text models of Qwen2-VL and Qwen2.5-VL (Alibaba, 2024): as qwen2, with M-RoPE for the rows of images."""

from localinfer.graph.attention import mrope, with_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As Llama, with biases."""
    build_decoder(g, DecoderSpec(attention=with_window(g, AttentionSpec(mrope(g))), qkv_bias=True))
