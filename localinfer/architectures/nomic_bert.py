"""Nomic Embed (Nussbaum et al., 2024): BERT with rotary embeddings and SwiGLU, mostly without biases."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.encoder import build_encoder


def build(g: Builder[X]) -> None:
    """Encoder with NeoX-style RoPE."""
    build_encoder(g, AttentionSpec(g.rope("halves")), activation="silu", gated=True)
