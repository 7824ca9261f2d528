"""Snowflake Arctic (Snowflake, 2024): Llama, and in parallel with each whole layer a mixture of experts, whose input is
the residual stream before the attention."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, add_branch, attention_branch, feed_forward_branch
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with normalized expert weights. The file's feed-forward length is that of an expert."""
    router = read_router(g, normed=True)
    spec = DecoderSpec(attention=AttentionSpec(g.rope("interleaved")), length_counts_gate=True)
    x, before = g.embeddings.tokens(), g.cross_layer.buffer(g.embedding_length)
    for blk in g.blocks():
        g.cross_layer.copy(x, before)
        attention = attention_branch(g, spec, blk, g.norm(x, f"{blk}attn_norm"))
        add_branch(g, x, attention, blk, point="attn_out")
        g.point(x, f"{blk}resid_mid")
        network = feed_forward_branch(g, spec, blk, g.norm(x, f"{blk}ffn_norm"))
        y = g.experts.apply(g.norm(before, f"{blk}ffn_norm_exps"), blk, router, "silu")
        add_branch(g, x, network, blk, point="ffn_out")
        add_branch(g, x, BranchOutput(y, ""), blk)
    g.output.logits(x)
