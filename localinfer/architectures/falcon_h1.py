"""Falcon-H1 (TII, 2025): attention and Mamba 2 in parallel in every layer."""

from localinfer.architectures.mamba2 import state_space
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """The matrices of the file already include the multipliers of the model's configuration."""
    n, shape, rope, x = g.embedding_length, g.recurrence("add"), g.rope("halves"), g.embed()
    for blk in g.blocks():
        h = g.norm(x, f"{blk}attn_norm")
        q, k, v = g.qkv(h, blk)
        g.matmul(g.attend(blk, q, k, v, rope=rope), f"{blk}attn_output", n, add_to=x)
        g.matmul(state_space(g, blk, h, shape), f"{blk}ssm_out", n, add_to=x)
        h = g.norm(x, f"{blk}ffn_norm")
        g.matmul(g.feed_forward(h, blk, "silu"), f"{blk}ffn_down", n, add_to=x)
    g.logits(x)
