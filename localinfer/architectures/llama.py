"""Llama (Touvron et al., 2023), and all that is built like it: Mistral, SmolLM2, TinyLlama, ..."""

from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """Pre-norm attention and a SwiGLU feed-forward network on a residual stream."""
    c = r.config
    n = c.embedding_length
    x = r.embed("token_embd.weight")
    for _, blk in r.blocks():
        a = r.attention(r.norm(x, f"{blk}attn_norm.weight"), blk, pairs="neighbours", rope=c.rope)
        r.matmul(a, f"{blk}attn_output.weight", n, add_to=x)
        f = r.feed_forward(r.norm(x, f"{blk}ffn_norm.weight"), blk, "silu")
        r.matmul(f, f"{blk}ffn_down.weight", n, add_to=x)
    r.logits(x)
