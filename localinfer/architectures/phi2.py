"""Phi-1, 1.5 and 2 (Microsoft, 2023): parallel branches after one LayerNorm, a plain feed-forward network, biases
everywhere, partial RoPE."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder

NORMS = {"attention": "attn_norm", "feed_forward": "attn_norm"}


def build(g: GraphBuilder) -> None:
    """Decoder with parallel branches and biases."""
    spec = DecoderSpec(
        attention=AttentionSpec(g.rope("halves")), activation="gelu", gated=False, parallel=True, pre_norms=NORMS
    )
    build_decoder(g, spec)
