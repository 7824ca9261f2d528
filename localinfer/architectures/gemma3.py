"""Gemma 3 (Google, 2025): norms around each branch, normalised heads, five sliding layers for each that sees all."""

import math

from localinfer.plan.recorder import Recorder

BLOCKS_27B = 62  # the largest model scales scores by the embedding's share of a head; its file does not say so
PATTERN = 6  # the last of every six blocks sees the whole context, unless the file says otherwise


def record(r: Recorder) -> None:
    """The embedding is scaled by sqrt(n); sliding layers turn with a base of their own."""
    n = r.embedding_length
    far, near = r.rope("halves"), r.rope_swa("halves")
    window, sliding = r.sliding_window(), r.sliding(PATTERN)
    scale = (n / r.heads[0].count) ** -0.5 if r.block_count == BLOCKS_27B else None
    x = r.embed(math.sqrt(n))
    for blk in r.blocks():
        rope, span = (near, window) if sliding[blk.number] else (far, 0)
        q, k, v = r.qkv(r.norm(x, f"{blk}attn_norm"), blk)
        a = r.attend(blk, q, k, v, rope=rope, norm="before", window=span, scale=scale)
        r.add_norm(x, r.matmul(a, f"{blk}attn_output", n), f"{blk}post_attention_norm")
        f = r.feed_forward(r.norm(x, f"{blk}ffn_norm"), blk, "gelu")
        r.add_norm(x, r.matmul(f, f"{blk}ffn_down", n), f"{blk}post_ffw_norm")
    r.logits(x)
