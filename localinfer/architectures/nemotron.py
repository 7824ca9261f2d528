"""Nemotron and Minitron (NVIDIA, 2024): LayerNorms, a plain feed-forward network with squared ReLU, RoPE on half of
each head."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """Biases are used where the file has them."""
    g.use_layer_norm()
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), activation="relu_squared", gated=False)
    build_decoder(g, spec)
