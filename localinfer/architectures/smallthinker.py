"""SmallThinker (SJTU, 2025): a mixture of experts with ReLU, chosen by the residual stream before the attention. The
larger model has three sliding-window layers for each full-attention layer, which has no rotary embedding."""

from localinfer.graph.attention import local_rope
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, add_branch, attention_branch
from localinfer.graph.mixture_of_experts import read_router

PATTERN = 4  # the first of every four layers has full attention


def build(g: Builder[X]) -> None:
    """Decoder with normalized expert weights."""
    router = read_router(g, "sigmoid", normed=True)
    spec = DecoderSpec(attention=local_rope(g, AttentionSpec(g.rope("halves")), PATTERN, first=True))
    x, before = g.embeddings.tokens(), g.cross_layer.buffer(g.embedding_length)
    for blk in g.blocks():
        g.cross_layer.copy(x, before)
        h = g.norm(x, f"{blk}attn_norm")
        add_branch(g, x, attention_branch(g, spec, blk, h), blk, point="attn_out")
        g.point(x, f"{blk}resid_mid")
        h = g.norm(x, f"{blk}ffn_norm")
        y = g.experts.apply(h, blk, router, "relu", router_input=before)
        add_branch(g, x, BranchOutput(y, ""), blk, point="ffn_out")
    g.output.logits(x)
