"""Falcon-H1 (TII, 2025): attention and Mamba 2 in parallel in every layer."""

from localinfer.architectures.mamba2 import state_space
from localinfer.graph.attention import qkv
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import BranchOutput, add_branch
from localinfer.graph.feed_forward import feed_forward
from localinfer.graph.properties.recurrence import read_recurrence


def build(g: Builder[X]) -> None:
    """The matrices of the file already include the multipliers of the model's configuration."""
    n, shape, attention = g.embedding_length, read_recurrence(g.hparams, "add"), AttentionSpec(g.rope("halves"))
    x = g.embeddings.tokens()
    for blk in g.blocks():
        h = g.norm(x, f"{blk}attn_norm")
        q, k, v = qkv(g, h, blk)
        add_branch(g, x, BranchOutput(g.attend(blk, q, k, v, attention), "attn_output"), blk, point="attn_out")
        g.matmul(state_space(g, blk, h, shape), f"{blk}ssm_out", n, add_to=x)
        g.point(x, f"{blk}resid_mid")
        h = g.norm(x, f"{blk}ffn_norm")
        add_branch(g, x, BranchOutput(feed_forward(g, h, blk, "silu"), "ffn_down"), blk, point="ffn_out")
    g.output.logits(x)
