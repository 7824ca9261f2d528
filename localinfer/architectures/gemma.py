"""Gemma (Google, 2024): as Llama, with a scaled embedding, gated GELU and a large head size."""

import math

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """The embedding is scaled by sqrt(n_embd)."""
    spec = DecoderSpec(
        attention=AttentionSpec(g.rope("halves")), activation="gelu", embedding_scale=math.sqrt(g.embedding_length)
    )
    build_decoder(g, spec)
