"""Jina Embeddings v3 (Sturua et al., 2024): BERT with rotary embeddings in place of learned positions."""

from localinfer.graph.builder import Builder, X
from localinfer.graph.encoder import build_encoder


def build(g: Builder[X]) -> None:
    """Encoder with exact GELU and biases on all matrices."""
    build_encoder(g, activation="gelu_erf", gated=False, rope=g.rope("halves"))
