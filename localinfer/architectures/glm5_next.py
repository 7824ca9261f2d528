"""GLM-5-Next (Z.ai, 2026): Kimi Delta Attention (KDA) in most layers, sparse latent attention without rotary embeddings
in the others, whose indexer chooses runs of positions, several residual streams that each branch mixes
(hyper-connections), and many experts with a biased router."""

from functools import partial

from localinfer.graph.builder import AttentionSpec, Block, Builder, MtpSpec, X
from localinfer.graph.decoder import BranchOutput, apply_branches, expert_branch
from localinfer.graph.delta_attention import delta_attention
from localinfer.graph.hyper_connections import apply_layers
from localinfer.graph.indexer import read_indexer_layers, read_run_indexer, sparse_attention
from localinfer.graph.mixture_of_experts import limited_swiglu, read_router
from localinfer.graph.properties.hyper_connections import read_hyper_connections
from localinfer.graph.properties.latent_attention import read_latent_shape
from localinfer.graph.properties.recurrence import read_kda


def build(g: Builder[X]) -> None:
    """Decoder with dense first layers, which has KDA where the file has no key heads. Gates are limited before SiLU.
    The MTP layer has one residual stream, and attends to all positions."""
    shape, select, streams = read_latent_shape(g.hparams), read_run_indexer(g), read_hyper_connections(g.hparams)
    has_indexer, spec = read_indexer_layers(g, lambda _: True, mtp=False), AttentionSpec(scale=shape.scale)
    delta = read_kda(g.hparams, g.attention_heads[0].count, bounded=g.hparams.has("kda.gate_lower_bound"))

    def attend(blk: Block, h: X) -> BranchOutput[X]:
        if not blk.heads.count_kv:
            return BranchOutput(delta_attention(g, h, blk, delta), "attn_output")
        return BranchOutput(sparse_attention(g, h, blk, shape, spec, select, has_indexer), "attn_output")

    network = expert_branch(g, read_router(g, "sigmoid"), *limited_swiglu(g))
    x = g.cross_layer.collapse(apply_layers(g, streams, attend, network), None, streams.count)
    g.output.logits(x)
    g.output.add_mtp_head(x, partial(apply_branches, g, attend, network), MtpSpec())
