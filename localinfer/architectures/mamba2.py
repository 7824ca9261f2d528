"""Mamba 2 (Dao and Gu, 2024): no attention and no feed-forward network, but recurrent heads behind a convolution."""

from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """One matrix makes gates, what is convolved (values, keys and queries), and the size of a step."""
    shape, x = r.recurrence("add"), r.embed()
    for blk in r.blocks():
        h = r.norm(x, f"{blk}attn_norm")
        z, vkq, step = r.slices(h, f"{blk}ssm_in", shape.n_values, shape.n_values + 2 * shape.n_keys, shape.heads)
        vkq = r.convolve(vkq, f"{blk}ssm_conv1d", shape.width, "silu")
        y = r.gate(z, r.recur(blk, vkq, step, None, shape), "silu")
        y = r.norm_groups(y, f"{blk}ssm_norm", shape.groups, shared=False)
        r.matmul(y, f"{blk}ssm_out", r.embedding_length, add_to=x)
    r.logits(x)
