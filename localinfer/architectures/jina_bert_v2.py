"""Jina Embeddings v2 (Guenther et al., 2023): BERT with ALiBi in place of learned positions, and GEGLU."""

from localinfer.graph.attention import alibi
from localinfer.graph.builder import Builder, X
from localinfer.graph.encoder import build_encoder

MAX_ALIBI_BIAS = 8.0


def build(g: Builder[X]) -> None:
    """Encoder whose scores decrease with the distance in both directions."""
    build_encoder(g, alibi(g, MAX_ALIBI_BIAS), activation="gelu_erf", gated=True)
