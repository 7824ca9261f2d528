"""Falcon (TII, 2023): parallel branches after one or two LayerNorms, and multi-query or grouped-query attention."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder

ONE_NORM = {"attention": "attn_norm", "feed_forward": "attn_norm"}
TWO_NORMS = {"attention": "attn_norm_2", "feed_forward": "attn_norm"}


def build(g: GraphBuilder) -> None:
    """Decoder with parallel branches and the exact GELU."""
    norms = TWO_NORMS if g.has("blk.0.attn_norm_2.weight") else ONE_NORM
    spec = DecoderSpec(
        attention=AttentionSpec(g.rope("halves")),
        activation="gelu_erf",
        gated=False,
        parallel=True,
        pre_norms=norms,
    )
    build_decoder(g, spec)
