"""Gemma 3 (Google, 2025): norms around each branch, normalised heads, five sliding layers for each that sees all."""

import math

from localinfer.recorder import Recorder

PATTERN = 6  # the last of every six layers sees the whole context


def record(r: Recorder) -> None:
    """The embedding is scaled by sqrt(n); sliding layers turn with a base of their own."""
    c = r.config
    n = c.embedding_length
    x = r.embed("token_embd.weight", math.sqrt(n))
    for i, blk in r.blocks():
        slides = (i + 1) % PATTERN != 0 and c.sliding_window > 0
        rope, window = (c.rope_swa, c.sliding_window) if slides else (c.rope, 0)
        h = r.norm(x, f"{blk}attn_norm.weight")
        a = r.attention(h, blk, pairs="halves", rope=rope, window=window, qk_norm=True)
        r.add_norm(x, r.matmul(a, f"{blk}attn_output.weight", n), f"{blk}post_attention_norm.weight")
        f = r.feed_forward(r.norm(x, f"{blk}ffn_norm.weight"), blk, "gelu")
        r.add_norm(x, r.matmul(f, f"{blk}ffn_down.weight", n), f"{blk}post_ffw_norm.weight")
    output = "output.weight" if "output.weight" in r.f.tensors else "token_embd.weight"
    r.logits(x, "output_norm.weight", output, r.n_vocab("token_embd.weight"))
