"""Qwen2 and Qwen2.5 (Alibaba, 2024): as llama, but queries, keys and values have biases, and heads turn in halves."""

from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """Pre-norm attention and a SwiGLU feed-forward network on a residual stream."""
    c = r.config
    n = c.embedding_length
    x = r.embed("token_embd.weight")
    for _, blk in r.blocks():
        h = r.norm(x, f"{blk}attn_norm.weight")
        a = r.attention(h, blk, pairs="halves", rope=c.rope, qkv_bias=True)
        r.matmul(a, f"{blk}attn_output.weight", n, add_to=x)
        f = r.feed_forward(r.norm(x, f"{blk}ffn_norm.weight"), blk, "silu")
        r.matmul(f, f"{blk}ffn_down.weight", n, add_to=x)
    r.logits(x)
