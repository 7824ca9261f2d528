"""EXAONE 4 (LG, 2025): norms after the branches only, and normalised heads. The larger model has three sliding-window
layers for each full-attention layer, and the latter have no rotary embedding."""

from localinfer.graph.decoder import NO_BRANCH_NORMS, POST_NORMS, AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder

PATTERN = 4


def build(g: GraphBuilder) -> None:
    """Without a sliding window, all layers have a rotary embedding."""
    rope, window = g.rope("halves"), g.sliding_window()
    full, local = AttentionSpec(None if window else rope), AttentionSpec(rope, window)
    specs = [local if sliding else full for sliding in g.sliding_layers(PATTERN)]
    spec = DecoderSpec(attention=specs, head_norm="before_rope", pre_norms=NO_BRANCH_NORMS, post_norms=POST_NORMS)
    build_decoder(g, spec)
