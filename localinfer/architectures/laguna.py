"""Laguna (poolside, 2026): normalized heads, whose outputs have softplus gates, another number of heads in each layer,
sliding-window layers with another rotary embedding, and many experts with a biased router and a shared expert."""

from dataclasses import replace

from localinfer.graph.attention import rope_swa, sliding_layers, sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder, gated_attention
from localinfer.graph.mixture_of_experts import read_router

PATTERN = 4  # the first of every four layers has full attention, unless the file specifies otherwise


def build(g: Builder[X]) -> None:
    """Decoder with dense first layers. There is a gate for each head, or for each of its values."""
    full = AttentionSpec(g.rope("halves"), head_norm="before_rope")
    local = replace(full, rope=rope_swa(g, "halves", "rope.freq_base"), window=sliding_window(g))
    specs = sliding_layers(g, PATTERN, first=True).choose(local, full)

    spec = DecoderSpec(attention=specs, router=read_router(g, "sigmoid", normed=True))
    build_decoder(g, spec, gated_attention(g, spec, "softplus"))
