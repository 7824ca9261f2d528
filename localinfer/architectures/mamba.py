"""Mamba (Gu and Dao, 2023) and Falcon Mamba: a selective scan after a convolution; no attention and no feed-forward
network."""

from localinfer.graph.builder import Builder, X


def build(g: Builder[X]) -> None:
    """The convolved values determine the step sizes and the matrices B and C, which some models normalize."""
    hparams, x = g.hparams, g.embeddings.tokens()
    n = hparams.count("ssm.inner_size")
    size = hparams.count("ssm.state_size")
    rank = hparams.count("ssm.time_step_rank")
    width, normed = hparams.count("ssm.conv_kernel", maximum=64), hparams.flag("ssm.dt_b_c_rms", False)
    for blk in g.blocks():
        h = g.norm(x, f"{blk}attn_norm")
        values, z = g.slices(h, f"{blk}ssm_in", n, n)
        g.point(z, f"{blk}ssm_gate")
        values = g.recurrent.convolve(values, f"{blk}ssm_conv1d", width, "silu")
        step, b, c = g.slices(values, f"{blk}ssm_x", rank, size, size)
        if normed:
            step, b, c = g.norm_groups(step, rank), g.norm_groups(b, size), g.norm_groups(c, size)
        g.point(b, f"{blk}ssm_b")
        g.point(c, f"{blk}ssm_c")
        y = g.recurrent.selective_scan(blk, values, g.matmul(step, f"{blk}ssm_dt", n), b, c)
        g.matmul(g.gate(z, y, "silu"), f"{blk}ssm_out", g.embedding_length, add_to=x)
    g.output.logits(x)
