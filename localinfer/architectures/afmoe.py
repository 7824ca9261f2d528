"""AFMoE (Arcee AI, 2025; Trinity): norms before and after each branch, normalized heads, gated attention, and many
experts with a biased router. Full-attention layers, one in four, have no rotary embedding."""

import math

from localinfer.graph.attention import local_rope, sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import POST_NORMS, DecoderSpec, build_decoder, gated_attention
from localinfer.graph.mixture_of_experts import read_router

PATTERN = 4


def build(g: Builder[X]) -> None:
    """Decoder with a scaled embedding, dense first layers and shared experts."""
    if not sliding_window(g):
        raise g.hparams.unsupported("attention.sliding_window", 0)
    attention = local_rope(g, AttentionSpec(g.rope("halves"), head_norm="before_rope"), PATTERN)

    router, scale = read_router(g, "sigmoid", normed=True), math.sqrt(g.embedding_length)
    spec = DecoderSpec(attention=attention, post_norms=POST_NORMS, embedding_scale=scale, router=router)
    build_decoder(g, spec, gated_attention(g, spec, "sigmoid"))
