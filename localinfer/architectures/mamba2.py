"""Mamba 2 (Dao and Gu, 2024): recurrent heads after a convolution; no attention and no feed-forward network."""

from localinfer.graph.builder import Block, Builder, Recurrence, X
from localinfer.graph.properties.recurrence import read_recurrence


def build(g: Builder[X]) -> None:
    """Each layer has a norm and a state-space mixer."""
    shape, x = read_recurrence(g.hparams, "add"), g.embeddings.tokens()
    for blk in g.blocks():
        y = state_space(g, blk, g.norm(x, f"{blk}attn_norm"), shape)
        g.matmul(y, f"{blk}ssm_out", g.embedding_length, add_to=x)
    g.output.logits(x)


def state_space(g: Builder[X], blk: Block, h: X, shape: Recurrence) -> X:
    """Return the input of ssm_out.

    One matrix makes the gates, the inputs of the convolution (values, keys and queries) and the step sizes. Some models
    have no norm after the gates.
    """
    z, vkq, step = g.slices(h, f"{blk}ssm_in", shape.n_values, shape.n_values + 2 * shape.n_keys, shape.heads)
    g.point(z, f"{blk}ssm_gate")
    g.point(step, f"{blk}ssm_dt")
    vkq = g.recurrent.convolve(vkq, f"{blk}ssm_conv1d", shape.width, "silu")
    y = g.gate(z, g.recurrent.recur(blk, vkq, step, None, shape), "silu")
    norm, size = f"{blk}ssm_norm.weight", shape.n_values // shape.groups
    if g.tensors.has(norm):
        y = g.norm_groups(y, size, norm, per_group_weight=True, out=y)
        g.point(y, f"{blk}ssm_norm")
    return y
