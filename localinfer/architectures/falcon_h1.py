"""Falcon-H1 (TII, 2025): attention and Mamba 2's recurrent heads side by side in every block."""

from localinfer.architectures.mamba2 import state_space
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """What its configuration multiplies vectors with is in the matrices already."""
    n, shape, rope, x = r.embedding_length, r.recurrence("add"), r.rope("halves"), r.embed()
    for blk in r.blocks():
        h = r.norm(x, f"{blk}attn_norm")
        q, k, v = r.qkv(h, blk)
        r.matmul(r.attend(blk, q, k, v, rope=rope), f"{blk}attn_output", n, add_to=x)
        r.matmul(state_space(r, blk, h, shape), f"{blk}ssm_out", n, add_to=x)
        h = r.norm(x, f"{blk}ffn_norm")
        r.matmul(r.feed_forward(h, blk, "silu"), f"{blk}ffn_down", n, add_to=x)
    r.logits(x)
