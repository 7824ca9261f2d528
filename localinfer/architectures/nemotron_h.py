"""Nemotron-H and Nemotron Nano 2 (NVIDIA, 2025): a block is Mamba 2's recurrent heads, or attention without any
distances, or a plain feed-forward network of squared relu."""

from localinfer.architectures.mamba2 import state_space
from localinfer.plan.basics import Block
from localinfer.plan.buffers import Buffer
from localinfer.plan.experts import Router
from localinfer.plan.recorder import Recorder


def record(r: Recorder, router: Router | None = None) -> None:
    """What a block is, its tensors say. Others of its kind have experts in the place of the feed-forward network."""
    r.keys.understand("rope.dimension_count", "rope.freq_base")  # of files in which nothing turns
    r.by_mean = False  # some files have the epsilon under the other name
    n, shape, x = r.embedding_length, r.recurrence("add"), r.embed()
    for blk in r.blocks():
        h = r.norm(x, f"{blk}attn_norm")
        if blk.heads.count_kv:
            q, k, v = r.qkv(h, blk)
            r.matmul(r.attend(blk, q, k, v, rope=None), f"{blk}attn_output", n, add_to=x)
        elif r.has(f"{blk}ssm_in.weight"):
            r.matmul(state_space(r, blk, h, shape), f"{blk}ssm_out", n, add_to=x)
        elif router:
            r.add(x, chosen(r, h, blk, router))
            r.add(x, r.shared_expert(h, blk, "relu_squared", gated=False))
        else:
            r.matmul(r.feed_forward(h, blk, "relu_squared", gated=False), f"{blk}ffn_down", n, add_to=x)
    r.logits(x)


def chosen(r: Recorder, h: Buffer, blk: Block, router: Router) -> Buffer:
    """What the chosen experts make of a token, in some models of a shorter vector that stands for it."""
    narrow, wide = f"{blk}ffn_latent_down", f"{blk}ffn_latent_up"
    if not r.has(f"{narrow}.weight"):
        return r.experts(h, blk, router, "relu_squared", gated=False)
    y = r.experts(r.matmul(h, narrow, r.rows(narrow)), blk, router, "relu_squared", gated=False, routed_by=h)
    return r.matmul(y, wide, r.embedding_length)
