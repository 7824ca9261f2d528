"""DeepSeek-V4 (DeepSeek, 2026): compressed attention, several residual streams that each branch mixes
(hyper-connections), and experts that the number of a token chooses in the first layers."""

from localinfer.graph.builder import Builder, X
from localinfer.graph.compressed_attention import compressed_attention, read_compressed_attention
from localinfer.graph.hyper_connections import merge_streams, read_streams
from localinfer.graph.mixture_of_experts import expert_feed_forward, limited_activations, read_router
from localinfer.graph.properties.hyper_connections import read_hyper_connections

LIMITS, SHARED_LIMITS = "swiglu_clamp_exp", "swiglu_clamp_shexp"


def build(g: Builder[X]) -> None:
    """All layers have experts and a shared one, whose gates are limited before SiLU."""
    shape, attention = read_hyper_connections(g.hparams), read_compressed_attention(g)
    router = read_router(g, "sqrt_softplus")
    g.hparams.accept("hash_layer_count", "embedding_length_out")  # tensors and the number of streams imply them
    limited = limited_activations(g, "silu_of_limited", LIMITS)
    shared = limited_activations(g, "silu_of_limited", SHARED_LIMITS) if g.hparams.has(SHARED_LIMITS) else limited
    x = g.cross_layer.streams(g.embeddings.tokens(), shape.count)
    for blk in g.blocks():
        h, weights = read_streams(g, x, f"{blk}hc_attn", shape)
        y = compressed_attention(g, g.norm(h, f"{blk}attn_norm"), blk, attention)
        g.point(y, f"{blk}attn_out")
        g.cross_layer.mix(x, y, weights, shape.count)
        h, weights = read_streams(g, x, f"{blk}hc_ffn", shape)
        h, activation, of_shared = g.norm(h, f"{blk}ffn_norm"), limited[blk.number], shared[blk.number]
        y = expert_feed_forward(g, h, blk, router, activation, shared_activation=of_shared)
        g.point(y, f"{blk}ffn_out")
        g.cross_layer.mix(x, y, weights, shape.count)
    g.output.logits(merge_streams(g, x, "output_hc", shape))
