"""ERNIE 4.5 (Baidu, 2025), without experts: as llama."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """As llama."""
    decoder(r, Sight(r.rope("neighbours")))
