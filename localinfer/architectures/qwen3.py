"""Qwen3 (Alibaba, 2025): as qwen2, but heads of queries and keys are normalised, and nothing has a bias."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """As llama, with normalised heads."""
    decoder(r, Sight(r.rope("halves")), head_norm="before")
