"""OLMo 2 and 3 (Allen Institute for AI, 2024): norms after the branches only, and over whole rows of queries and keys.
OLMo 3 has sliding-window layers, whose RoPE is not scaled."""

from localinfer.graph.attention import rope_swa, sliding_layers, sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import NO_BRANCH_NORMS, POST_NORMS, DecoderSpec, build_decoder

PATTERN = 4


def build(g: Builder[X]) -> None:
    """Decoder with a SwiGLU feed-forward network, as Llama's."""
    full = AttentionSpec(g.rope("halves"))
    local = AttentionSpec(rope_swa(g, "halves", "rope.freq_base"), sliding_window(g))
    specs = sliding_layers(g, PATTERN).choose(local, full)
    spec = DecoderSpec(attention=specs, row_norm=True, pre_norms=NO_BRANCH_NORMS, post_norms=POST_NORMS)
    build_decoder(g, spec)
