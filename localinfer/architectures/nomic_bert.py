"""Nomic Embed (Nussbaum et al., 2024): BERT with rotary embeddings and SwiGLU, mostly without biases."""

from localinfer.graph.encoder import encoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """Encoder with NeoX-style RoPE."""
    encoder(g, activation="silu", gated=True, rope=g.rope("halves"))
