"""Hunyuan 4 (Tencent, 2026): sparse latent attention with a gate and attention sinks, whose positions are those that an
earlier layer chose in most layers, several residual streams to which each branch adds (hyper-connections), and many
experts with a biased router."""

from dataclasses import replace
from functools import partial

from localinfer.graph.builder import AttentionSpec, Block, Builder, MtpSpec, PerLayer, X
from localinfer.graph.decoder import BranchOutput, apply_branches, expert_branch
from localinfer.graph.hyper_connections import apply_layers, merge_streams
from localinfer.graph.indexer import read_indexer, read_indexer_layers, sparse_attention
from localinfer.graph.mixture_of_experts import LIMITED, LIMITS, limited_activations, read_router
from localinfer.graph.properties.hyper_connections import read_hyper_connections
from localinfer.graph.properties.latent_attention import read_latent_shape


def build(g: Builder[X]) -> None:
    """Decoder with dense first layers. The gates of the routed experts are limited before SiLU. The MTP layer has one
    residual stream, and an indexer."""
    streams = read_hyper_connections(g.hparams)
    streams = replace(streams, magnitude=g.hparams.positive("hyper_connection.magnitude"), output_eps=streams.eps)
    shape, select = read_latent_shape(g.hparams), read_indexer(g, "interleaved", key_eps=g.eps, at_end=True)
    spec = AttentionSpec(g.rope("interleaved", amplified=False), scale=shape.scale, sinks=True)
    has_indexer, limited = read_indexer_layers(g, lambda _: True), limited_activations(g, LIMITED, LIMITS)
    others = PerLayer(["silu"] * g.block_count, "silu")
    network = expert_branch(g, read_router(g, "sigmoid"), limited, others)

    def attend(blk: Block, h: X) -> BranchOutput[X]:
        y = sparse_attention(g, h, blk, shape, spec, select, has_indexer)
        gate = g.matmul(h, f"{blk}attn_gate", blk.heads.count * shape.value_dim)
        return BranchOutput(g.gate(gate, y, "sigmoid"), "attn_output")

    x = merge_streams(g, apply_layers(g, streams, attend, network), "output_hc", streams)
    g.output.logits(x)
    g.output.add_mtp_head(x, partial(apply_branches, g, attend, network), MtpSpec())
