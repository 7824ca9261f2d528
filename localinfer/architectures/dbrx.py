"""DBRX (Databricks, 2024): LayerNorms without biases, fused queries, keys and values of limited magnitude, and a
mixture of experts in every layer."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router

NORMS = {"attention": "attn_norm", "feed_forward": "attn_output_norm"}


def build(g: Builder[X]) -> None:
    """Decoder with a softmax router, whose weights are normalized."""
    g.use_layer_norm()
    router = read_router(g, normed=True)
    build_decoder(g, DecoderSpec(attention=AttentionSpec(g.rope("halves")), pre_norms=NORMS, router=router))
