"""Mamba 2 (Dao and Gu, 2024): no attention and no feed-forward network, but recurrent heads behind a convolution."""

from localinfer.plan.basics import Block
from localinfer.plan.buffers import Buffer
from localinfer.plan.recorder import Recorder
from localinfer.plan.recurrence import Recurrence


def record(r: Recorder) -> None:
    """Nothing but a mixer in each block."""
    shape, x = r.recurrence("add"), r.embed()
    for blk in r.blocks():
        y = state_space(r, blk, r.norm(x, f"{blk}attn_norm"), shape)
        r.matmul(y, f"{blk}ssm_out", r.embedding_length, add_to=x)
    r.logits(x)


def state_space(r: Recorder, blk: Block, h: Buffer, shape: Recurrence) -> Buffer:
    """The input of ssm_out. One matrix makes gates, what is convolved (values, keys and queries), and the size of a
    step; some models have no norm behind the gates."""
    z, vkq, step = r.slices(h, f"{blk}ssm_in", shape.n_values, shape.n_values + 2 * shape.n_keys, shape.heads)
    vkq = r.convolve(vkq, f"{blk}ssm_conv1d", shape.width, "silu")
    y = r.gate(z, r.recur(blk, vkq, step, None, shape), "silu")
    norm, size = f"{blk}ssm_norm.weight", shape.n_values // shape.groups
    return r.norm_parts(y, size, norm, each=True, into=y) if r.has(norm) else y
