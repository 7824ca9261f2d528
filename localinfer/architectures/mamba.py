"""Mamba (Gu and Dao, 2023), and Falcon Mamba: no attention and no feed-forward network, but a selective scan behind a
convolution."""

from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """What is convolved says how large a step is and what is learnt and asked, in some models by normalised vectors."""
    keys, x = r.keys, r.embed()
    n, size, rank = keys.count("ssm.inner_size"), keys.count("ssm.state_size"), keys.count("ssm.time_step_rank")
    width, normed = keys.count("ssm.conv_kernel", most=64), keys.flag("ssm.dt_b_c_rms", False)
    for blk in r.blocks():
        h = r.norm(x, f"{blk}attn_norm")
        values, z = r.slices(h, f"{blk}ssm_in", n, n)
        values = r.convolve(values, f"{blk}ssm_conv1d", width, "silu")
        step, b, c = r.slices(values, f"{blk}ssm_x", rank, size, size)
        if normed:
            step, b, c = r.norm_parts(step, rank), r.norm_parts(b, size), r.norm_parts(c, size)
        y = r.scan(blk, values, r.matmul(step, f"{blk}ssm_dt", n), b, c)
        r.matmul(r.gate(z, y, "silu"), f"{blk}ssm_out", r.embedding_length, add_to=x)
    r.logits(x)
