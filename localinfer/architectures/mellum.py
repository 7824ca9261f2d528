"""Mellum 2 (JetBrains, 2026): as qwen3moe, with sliding-window layers, whose rotary embedding is not scaled."""

from dataclasses import replace

from localinfer.graph.attention import rope_swa, sliding_layers, sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router

PATTERN = 4


def build(g: Builder[X]) -> None:
    """Decoder with normalized expert weights."""
    full = AttentionSpec(g.rope("halves"), head_norm="before_rope")
    local = replace(full, rope=rope_swa(g, "halves", "rope.freq_base"), window=sliding_window(g))
    specs = sliding_layers(g, PATTERN).choose(local, full)
    build_decoder(g, DecoderSpec(attention=specs, router=read_router(g, normed=True)))
