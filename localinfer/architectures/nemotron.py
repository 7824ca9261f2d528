"""Nemotron and Minitron (NVIDIA, 2024): LayerNorms, and a plain feed-forward network of squared relu; half of a head
turns."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """Biases are the file's."""
    decoder(r, Sight(r.rope("halves")), activation="relu_squared", gated=False)
