"""ChatGLM3 and GLM-4-9B (Zhipu AI, 2023 and 2024): Llama with fused gate and up matrices, biases on queries, keys and
values, and rotary embeddings on half of each head."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As Llama."""
    build_decoder(g, DecoderSpec(attention=AttentionSpec(g.rope("interleaved"))))
