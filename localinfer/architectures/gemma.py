"""Gemma (Google, 2024): as Llama, with a scaled embedding, gated GELU and a large head size."""

import math

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """The embedding is scaled by sqrt(n_embd)."""
    spec = DecoderSpec(
        attention=AttentionSpec(g.rope("halves")), activation="gelu", embedding_scale=math.sqrt(g.embedding_length)
    )
    build_decoder(g, spec)
