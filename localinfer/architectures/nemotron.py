"""Nemotron and Minitron (NVIDIA, 2024): LayerNorms, a plain feed-forward network with squared ReLU, RoPE on half of
each head."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """Biases are used where the file has them."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), activation="relu_squared", gated=False)
    build_decoder(g, spec)
