"""Jina Embeddings v3 (Sturua et al., 2024): BERT with rotary embeddings in place of learned positions."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.encoder import build_encoder


def build(g: Builder[X]) -> None:
    """Encoder with exact GELU and biases on all matrices."""
    build_encoder(g, AttentionSpec(g.rope("halves")), activation="gelu_erf", gated=False)
