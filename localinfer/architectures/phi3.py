"""Phi-3 and Phi-4 (Microsoft, 2024): as llama; queries, keys and values are one matrix, gate and up another. All layers
have the window, if there is one."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """Stretched by LongRoPE, where the file has its factors."""
    decoder(r, Sight(r.rope("halves"), r.sliding_window()))
