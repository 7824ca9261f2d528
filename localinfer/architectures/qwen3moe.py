"""Qwen3 with experts (Alibaba, 2025): as qwen3, but a router chooses among many small feed-forward networks."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The weights of the chosen are divided by their sum."""
    decoder(r, Sight(r.rope("halves")), head_norm="before", router=r.router(normed=True))
