"""Granite with sliding windows (IBM, 2026): as granite, with three sliding-window layers for each full-attention layer,
learned attention sinks, and a mixture of experts in some models."""

from dataclasses import replace

from localinfer.architectures.granite import build as build_granite
from localinfer.architectures.granite import granite_attention
from localinfer.graph.attention import sliding_layers, sliding_window
from localinfer.graph.builder import Builder, PerLayer, X
from localinfer.graph.mixture_of_experts import has_experts, read_router

PATTERN = 4  # the first of every four layers has full attention, unless the file specifies otherwise


def build(g: Builder[X]) -> None:
    """The file may specify which layers have a rotary embedding."""
    full = replace(granite_attention(g), sinks=True)
    local = replace(full, window=sliding_window(g))
    rotated = g.hparams.flags("attention.rope_pattern", g.block_count, lambda _: True)
    specs = zip(sliding_layers(g, PATTERN, first=True).choose(local, full).values, rotated, strict=True)
    attention = PerLayer([spec if has_rope else replace(spec, rope=None) for spec, has_rope in specs])
    build_granite(g, read_router(g, normed=True) if has_experts(g) else None, attention=attention)
