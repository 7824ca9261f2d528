"""Grok (xAI, 2024 and 2025): norms before and after each branch, soft-capped scores and logits, also of the router, and
a mixture of experts with GELU gates; in Grok 2 beside a dense feed-forward network."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, add_branch, attention_branch
from localinfer.graph.feed_forward import feed_forward
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with normalized expert weights. The defaults are Grok 1's, whose early files do not contain them."""
    number = g.hparams.positive
    scale, cap = number("attention.output_scale", 128**-0.5), number("attn_logit_softcapping", 30.0)
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves"), scale=scale, cap=cap))
    router, x = read_router(g, normed=True), g.embeddings.tokens(number("embedding_scale", 6144**0.5))
    norm = "layer_output_norm" if g.tensors.has("blk.0.layer_output_norm.weight") else "post_ffw_norm"
    for blk in g.blocks():
        h = g.norm(x, f"{blk}attn_norm")
        add_branch(g, x, attention_branch(g, spec, blk, h), blk, "attn_output_norm", point="attn_out")
        g.point(x, f"{blk}resid_mid")
        h = g.norm(x, f"{blk}ffn_norm")
        y = g.experts.apply(h, blk, router, "gelu")
        if g.tensors.has(f"{blk}ffn_up.weight"):
            g.matmul(feed_forward(g, h, blk, "gelu"), f"{blk}ffn_down", g.embedding_length, add_to=y)
            g.scale(y, 0.5**0.5)
        add_branch(g, x, BranchOutput(y, ""), blk, norm, point="ffn_out")
    final_cap = g.hparams.number("final_logit_softcapping", 0.0)
    g.output.logits(x, scale=number("logit_scale", 3**-0.5), cap=final_cap)
