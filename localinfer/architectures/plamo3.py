"""PLaMo 3 (Preferred Networks and NICT, 2025): norms before and after each branch, normalized heads, seven
sliding-window layers for each full-attention layer, and fused queries, keys and values."""

from dataclasses import replace

from localinfer.graph.attention import rope_swa, sliding_layers, sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import POST_NORMS, DecoderSpec, build_decoder

PATTERN = 8


def build(g: Builder[X]) -> None:
    """Sliding-window layers have their own RoPE base, which is not scaled."""
    full = AttentionSpec(g.rope("halves", truncate=False), head_norm="before_rope")
    local = replace(full, rope=rope_swa(g, "halves", "rope.freq_base"), window=sliding_window(g))
    specs = sliding_layers(g, PATTERN).choose(local, full)
    build_decoder(g, DecoderSpec(attention=specs, post_norms=POST_NORMS))
