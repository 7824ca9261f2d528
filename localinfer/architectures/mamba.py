"""Mamba (Gu and Dao, 2023) and Falcon Mamba: a selective scan after a convolution; no attention and no feed-forward
network."""

from localinfer.graph.builder import Block, Builder, X


def build(g: Builder[X]) -> None:
    """Layers of selective scans on a residual stream."""
    x = g.embeddings.tokens()
    for blk in g.blocks():
        y = selective_scan(g, blk, g.norm(x, f"{blk}attn_norm"))
        g.matmul(y, f"{blk}ssm_out", g.embedding_length, add_to=x)
    g.output.logits(x)


def selective_scan(g: Builder[X], blk: Block, h: X) -> X:
    """Return the gated output of a layer's scan. The convolved values determine the step sizes and the matrices B and
    C, which some models normalize.
    """
    n, size, rank = (g.hparams.count(f"ssm.{name}") for name in ("inner_size", "state_size", "time_step_rank"))
    values, z = g.slices(h, f"{blk}ssm_in", n, n)
    g.point(z, f"{blk}ssm_gate")
    width = g.hparams.count("ssm.conv_kernel", maximum=64)
    values = g.recurrent.convolve(values, f"{blk}ssm_conv1d", width, "silu")
    step, b, c = g.slices(values, f"{blk}ssm_x", rank, size, size)
    if g.tensors.has(f"{blk}ssm_dt_norm.weight"):
        step, b, c = g.norm(step, f"{blk}ssm_dt_norm"), g.norm(b, f"{blk}ssm_b_norm"), g.norm(c, f"{blk}ssm_c_norm")
    elif g.hparams.flag("ssm.dt_b_c_rms", False):
        step, b, c = g.norm_groups(step, rank), g.norm_groups(b, size), g.norm_groups(c, size)
    g.point(b, f"{blk}ssm_b")
    g.point(c, f"{blk}ssm_c")
    y = g.recurrent.selective_scan(blk, values, g.matmul(step, f"{blk}ssm_dt", n), b, c)
    return g.gate(z, y, "silu")
