"""Muse Glimmer (Meta, 2026): a normalized embedding, norms before and after each branch, normalized heads, gated
attention and soft-capped logits. Full-attention layers, one in four, have no rotary embedding."""

from localinfer.graph.attention import local_rope, sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import POST_NORMS, DecoderSpec, build_decoder, gated_attention

PATTERN, POST_NORM_EPS = 4, 1e-8


def build(g: Builder[X]) -> None:
    """Decoder whose norms after the branches have another epsilon, for which files have no key."""
    if not sliding_window(g):
        raise g.hparams.unsupported("attention.sliding_window", 0)
    attention = local_rope(g, AttentionSpec(g.rope("interleaved"), head_norm="before_rope"), PATTERN)
    scale, cap = g.hparams.positive("logit_scale"), g.hparams.number("final_logit_softcapping", 0.0)
    spec = DecoderSpec(
        attention=attention, post_norms=POST_NORMS, post_norm_eps=POST_NORM_EPS, unweighted_embedding_norm=True,
        logit_scale=scale, logit_cap=cap,
    )  # fmt: skip
    build_decoder(g, spec, gated_attention(g, spec, "sigmoid"))
