"""Llama (Touvron et al., 2023), and all that is built like it: Mistral, SmolLM2, TinyLlama, Yi, ..."""

from localinfer.plan.recorder import Recorder


def record(r: Recorder, pairs: str = "neighbours", norm: str = "no") -> None:
    """Pre-norm attention and a SwiGLU feed-forward network on a residual stream.

    Others are the same but for which pairs of a head turn, and when heads are normalised.
    """
    rope, n = r.rope(pairs), r.embedding_length
    x = r.embed()
    for blk in r.blocks():
        q, k, v = r.qkv(r.norm(x, f"{blk}attn_norm"), blk)
        a = r.attend(blk, q, k, v, rope=rope, norm=norm)
        r.matmul(a, f"{blk}attn_output", n, add_to=x)
        f = r.feed_forward(r.norm(x, f"{blk}ffn_norm"), blk, "silu")
        r.matmul(f, f"{blk}ffn_down", n, add_to=x)
    r.logits(x)
