"""GTE v1.5 and mGTE (Zhang et al., 2024): bert with rotary embeddings and GeGLU."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.encoder import build_encoder


def build(g: Builder[X]) -> None:
    """Encoder with NeoX-style RoPE and exact GELU."""
    build_encoder(g, AttentionSpec(g.rope("halves")), activation="gelu_erf", gated=True)
