"""Qwen2 and Qwen2.5 (Alibaba, 2024): as llama, but queries, keys and values have biases, and heads turn in halves."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """As llama, with biases."""
    decoder(r, Sight(r.rope("halves")), qkv_bias=True)
