"""Seed-OSS (ByteDance, 2025): as qwen2; the norm before the feed-forward network has another name."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder

NORMS = {"attention": "attn_norm", "feed_forward": "post_attention_norm"}


def record(r: Recorder) -> None:
    """As llama."""
    decoder(r, Sight(r.rope("halves")), before=NORMS)
