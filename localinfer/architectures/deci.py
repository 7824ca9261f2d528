"""Llama Nemotron (NVIDIA, 2024) and DeciLM: llama with layers that an architecture search has chosen. Layers may lack
attention or the feed-forward network, or have a matrix in place of attention."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, add_branch, attention_branch, feed_forward_branch


def build(g: Builder[X]) -> None:
    """The tensors determine what a layer has."""
    spec, x = DecoderSpec(attention=AttentionSpec(g.rope("interleaved"))), g.embeddings.tokens()
    for blk in g.blocks():
        if g.tensors.has(f"{blk}attn_output.weight"):
            h = g.norm(x, f"{blk}attn_norm")
            branch = attention_branch(g, spec, blk, h) if blk.heads.count_kv else BranchOutput(h, "attn_output")
            add_branch(g, x, branch, blk, point="attn_out")
        g.point(x, f"{blk}resid_mid")
        if g.tensors.has(f"{blk}ffn_up.weight"):
            network = feed_forward_branch(g, spec, blk, g.norm(x, f"{blk}ffn_norm"))
            add_branch(g, x, network, blk, point="ffn_out")
    g.output.logits(x)
