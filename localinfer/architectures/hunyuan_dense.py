"""Hunyuan (Tencent, 2025), without experts: as llama, but heads turn in halves and are normalised after that."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """As llama, with normalised heads."""
    decoder(r, Sight(r.rope("halves")), head_norm="after")
