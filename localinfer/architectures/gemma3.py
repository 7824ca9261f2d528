"""Gemma 3 (Google, 2025): norms around each branch, normalised heads, five sliding layers for each that sees all."""

import math

from localinfer.plan.config import read_sliding
from localinfer.plan.recorder import Recorder

BLOCKS_27B = 62  # the largest model scales scores by the embedding's share of a head; its file does not say so
PATTERN = 6  # the last of every six blocks sees the whole context, unless the file says otherwise


def record(r: Recorder) -> None:
    """The embedding is scaled by sqrt(n); sliding layers turn with a base of their own."""
    c = r.config
    n = c.embedding_length
    x = r.embed("token_embd.weight", math.sqrt(n))
    scale = (n / c.head_count) ** -0.5 if c.block_count == BLOCKS_27B else None
    sliding = read_sliding(r.f, c, PATTERN)
    for i, blk in r.blocks():
        rope, window = (c.rope_swa, c.sliding_window) if sliding[i] else (c.rope, 0)
        h = r.norm(x, f"{blk}attn_norm.weight")
        a = r.attention(h, blk, pairs="halves", rope=rope, window=window, scale=scale, qk_norm=True)
        r.add_norm(x, r.matmul(a, f"{blk}attn_output.weight", n), f"{blk}post_attention_norm.weight")
        f = r.feed_forward(r.norm(x, f"{blk}ffn_norm.weight"), blk, "gelu")
        r.add_norm(x, r.matmul(f, f"{blk}ffn_down.weight", n), f"{blk}post_ffw_norm.weight")
    r.logits(x)
