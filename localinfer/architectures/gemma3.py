"""Gemma 3 (Google, 2025): norms before and after each branch, normalised heads, five sliding-window layers per
full-attention layer."""

import math

from localinfer.graph.decoder import POST_NORMS, AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder

BLOCKS_27B = 62  # layers of the 27B model, which scales scores by (n_embd / n_head)^-1/2; the file does not say so
PATTERN = 6  # every sixth layer has full attention, unless the file says otherwise


def build(g: GraphBuilder) -> None:
    """The embedding is scaled by sqrt(n_embd). Sliding-window layers have their own RoPE base."""
    n = g.embedding_length
    full = AttentionSpec(g.rope("halves"))
    local = AttentionSpec(g.rope_swa("halves"), g.sliding_window())
    spec = DecoderSpec(
        attention=[local if sliding else full for sliding in g.sliding_layers(PATTERN)],
        activation="gelu",
        head_norm="before_rope",
        post_norms=POST_NORMS,
        embedding_scale=math.sqrt(n),
        scale=(n / g.heads[0].count) ** -0.5 if g.block_count == BLOCKS_27B else None,
    )
    build_decoder(g, spec)
