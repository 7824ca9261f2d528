"""EXAONE 4 (LG, 2025): norms after the branches only, and normalized heads. The larger model has three sliding-window
layers for each full-attention layer, and the latter have no rotary embedding."""

from localinfer.graph.attention import local_rope
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import NO_BRANCH_NORMS, POST_NORMS, DecoderSpec, build_decoder

PATTERN = 4


def build(g: Builder[X]) -> None:
    """Without a sliding window, all layers have a rotary embedding."""
    attention = local_rope(g, AttentionSpec(g.rope("halves"), head_norm="before_rope"), PATTERN)
    spec = DecoderSpec(attention=attention, pre_norms=NO_BRANCH_NORMS, post_norms=POST_NORMS)
    build_decoder(g, spec)
