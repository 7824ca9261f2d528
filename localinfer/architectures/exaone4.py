"""EXAONE 4 (LG, 2025): norms after the branches only, and normalized heads. The larger model has three sliding-window
layers for each full-attention layer, and the latter have no rotary embedding."""

from localinfer.graph.attention import sliding_layers, sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import NO_BRANCH_NORMS, POST_NORMS, DecoderSpec, build_decoder

PATTERN = 4


def build(g: Builder[X]) -> None:
    """Without a sliding window, all layers have a rotary embedding."""
    norm, rope, window = "before_rope", g.rope("halves"), sliding_window(g)
    full, local = AttentionSpec(None if window else rope, head_norm=norm), AttentionSpec(rope, window, head_norm=norm)
    specs = [local if sliding else full for sliding in sliding_layers(g, PATTERN)]
    spec = DecoderSpec(attention=specs, pre_norms=NO_BRANCH_NORMS, post_norms=POST_NORMS)
    build_decoder(g, spec)
