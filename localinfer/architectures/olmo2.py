"""OLMo 2 and 3 (Allen Institute for AI, 2024): norms after the branches only, and over whole rows of queries and keys.
OLMo 3 has sliding-window layers, whose RoPE is not scaled."""

from localinfer.graph.decoder import NO_BRANCH_NORMS, POST_NORMS, AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder

PATTERN = 4


def build(g: GraphBuilder) -> None:
    """Decoder with a SwiGLU feed-forward network, as Llama's."""
    full = AttentionSpec(g.rope("halves"))
    local = AttentionSpec(g.rope_swa("halves", "rope.freq_base"), g.sliding_window())
    specs = [local if sliding else full for sliding in g.sliding_layers(PATTERN)]
    spec = DecoderSpec(attention=specs, row_norm=True, pre_norms=NO_BRANCH_NORMS, post_norms=POST_NORMS)
    build_decoder(g, spec)
