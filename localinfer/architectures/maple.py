"""Maple (DeepGrove, 2026): as qwen3moe, with limited gates of experts, and sliding-window layers; full-attention layers
have no rotary embeddings."""

from localinfer.graph.attention import local_rope
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import limited_activations, read_router


def build(g: Builder[X]) -> None:
    """Decoder with normalized expert weights. The file specifies which layers have a sliding window."""
    attention = local_rope(g, AttentionSpec(g.rope("halves"), head_norm="before_rope"), 0)
    limited = limited_activations(g, "silu_of_limited", "swiglu_clamp_exp")
    build_decoder(g, DecoderSpec(attention=attention, activation=limited, router=read_router(g, normed=True)))
