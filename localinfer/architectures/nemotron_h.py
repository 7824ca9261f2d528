"""Nemotron-H and Nemotron Nano 2 (NVIDIA, 2025): each layer is Mamba 2, attention without positions, or a plain
feed-forward network with squared ReLU."""

from localinfer.architectures.mamba2 import state_space
from localinfer.graph.buffers import Buffer
from localinfer.graph.experts import Router
from localinfer.graph.graph_builder import GraphBuilder
from localinfer.graph.graph_builder_base import Block


def build(g: GraphBuilder, router: Router | None = None) -> None:
    """The tensors of a layer tell its kind. A variant has experts instead of the feed-forward network."""
    g.hparams.accept("rope.dimension_count", "rope.freq_base")  # in the files, but there is no RoPE
    g.uses_layer_norm = False  # some files have the epsilon under the LayerNorm key
    n, shape, x = g.embedding_length, g.recurrence("add"), g.embed()
    for blk in g.blocks():
        h = g.norm(x, f"{blk}attn_norm")
        if blk.heads.count_kv:
            q, k, v = g.qkv(h, blk)
            g.matmul(g.attend(blk, q, k, v, rope=None), f"{blk}attn_output", n, add_to=x)
        elif g.has(f"{blk}ssm_in.weight"):
            g.matmul(state_space(g, blk, h, shape), f"{blk}ssm_out", n, add_to=x)
        elif router:
            g.add(x, routed_experts(g, h, blk, router))
            g.add(x, g.shared_expert(h, blk, "relu_squared", gated=False))
        else:
            g.matmul(g.feed_forward(h, blk, "relu_squared", gated=False), f"{blk}ffn_down", n, add_to=x)
    g.logits(x)


def routed_experts(g: GraphBuilder, h: Buffer, blk: Block, router: Router) -> Buffer:
    """Return the output of the chosen experts. In some models the experts work on a lower-dimensional latent vector."""
    down, up = f"{blk}ffn_latent_down", f"{blk}ffn_latent_up"
    if not g.has(f"{down}.weight"):
        return g.experts(h, blk, router, "relu_squared", gated=False)
    y = g.experts(g.matmul(h, down, g.n_rows(down)), blk, router, "relu_squared", gated=False, routed_by=h)
    return g.matmul(y, up, g.embedding_length)
