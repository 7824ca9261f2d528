"""Qwen1.5 and Qwen2 with experts (Alibaba, 2024): as qwen2, with a shared expert that has a gate of its own."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The weights of the chosen are their probabilities."""
    decoder(r, Sight(r.rope("halves")), qkv_bias=True, router=r.router())
