"""Hunyuan 4 (Tencent, 2026): sparse latent attention with a gate and attention sinks, whose positions are those that an
earlier layer chose in most layers, several residual streams to which each branch adds (hyper-connections), and many
experts with a biased router."""

from dataclasses import replace
from functools import partial

from localinfer.architectures.deepseek32 import read_indexer
from localinfer.graph.attention import latent_attention, read_indexer_layers
from localinfer.graph.builder import AttentionSpec, Block, Builder, X
from localinfer.graph.feed_forward import feed_forward
from localinfer.graph.hyper_connections import merge_streams, read_streams
from localinfer.graph.mixture_of_experts import expert_feed_forward, limited_activations, read_router
from localinfer.graph.properties.hyper_connections import read_hyper_connections
from localinfer.graph.properties.latent_attention import read_latent_shape


def build(g: Builder[X]) -> None:
    """Decoder with dense first layers. The gates of the routed experts are limited before SiLU."""
    streams = read_hyper_connections(g.hparams)
    streams = replace(streams, magnitude=g.hparams.positive("hyper_connection.magnitude"), output_eps=streams.eps)
    router, limited = read_router(g, "sigmoid"), limited_activations(g, "silu_of_limited", "swiglu_clamp_exp")
    shape, select = read_latent_shape(g.hparams), read_indexer(g, "interleaved", key_eps=g.eps, at_end=True)
    spec = AttentionSpec(g.rope("interleaved", amplified=False), scale=shape.scale, sinks=True, selected=True)
    has_indexer, n = read_indexer_layers(g, lambda _: True), g.embedding_length

    def attend(blk: Block, h: X) -> X:
        selects = partial(select, blk, h) if has_indexer[blk.number] else None
        y = latent_attention(g, h, blk, shape, spec, selects)
        gate = g.matmul(h, f"{blk}attn_gate", blk.heads.count * shape.value_dim)
        return g.matmul(g.gate(gate, y, "sigmoid"), f"{blk}attn_output", n)

    x = g.cross_layer.streams(g.embeddings.tokens(), streams.count)
    for blk in g.blocks():
        h, weights = read_streams(g, x, f"{blk}hc_attn", streams)
        y = attend(blk, g.norm(h, f"{blk}attn_norm"))
        g.point(y, f"{blk}attn_out")
        g.cross_layer.mix(x, y, weights, streams.count)
        h, weights = read_streams(g, x, f"{blk}hc_ffn", streams)
        h = g.norm(h, f"{blk}ffn_norm")
        if g.tensors.has(f"{blk}ffn_gate_inp.weight"):
            y = expert_feed_forward(g, h, blk, router, limited[blk.number], shared_activation="silu")
        else:
            y = g.matmul(feed_forward(g, h, blk, "silu"), f"{blk}ffn_down", n)
        g.point(y, f"{blk}ffn_out")
        g.cross_layer.mix(x, y, weights, streams.count)
    g.output.logits(merge_streams(g, x, "output_hc", streams))
