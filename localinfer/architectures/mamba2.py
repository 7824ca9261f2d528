"""Mamba 2 (Dao and Gu, 2024): recurrent heads after a convolution; no attention and no feed-forward network."""

from localinfer.graph.buffers import Buffer
from localinfer.graph.graph_builder import GraphBuilder
from localinfer.graph.graph_builder_base import Block
from localinfer.graph.recurrence import Recurrence


def build(g: GraphBuilder) -> None:
    """Each layer has a norm and a state-space mixer."""
    shape, x = g.recurrence("add"), g.embed()
    for blk in g.blocks():
        y = state_space(g, blk, g.norm(x, f"{blk}attn_norm"), shape)
        g.matmul(y, f"{blk}ssm_out", g.embedding_length, add_to=x)
    g.logits(x)


def state_space(g: GraphBuilder, blk: Block, h: Buffer, shape: Recurrence) -> Buffer:
    """Return the input of ssm_out.

    One matrix makes the gates, the inputs of the convolution (values, keys and queries) and the step sizes. Some models
    have no norm after the gates.
    """
    z, vkq, step = g.slices(h, f"{blk}ssm_in", shape.n_values, shape.n_values + 2 * shape.n_keys, shape.heads)
    vkq = g.convolve(vkq, f"{blk}ssm_conv1d", shape.width, "silu")
    y = g.gate(z, g.recur(blk, vkq, step, None, shape), "silu")
    norm, size = f"{blk}ssm_norm.weight", shape.n_values // shape.groups
    return g.norm_groups(y, size, norm, per_group_weight=True, out=y) if g.has(norm) else y
