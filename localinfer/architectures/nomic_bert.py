"""Nomic Embed (Nussbaum et al., 2024): BERT with rotary embeddings and SwiGLU, mostly without biases."""

from localinfer.plan.encoder import encoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """Halves of heads turn."""
    encoder(r, activation="silu", gated=True, rope=r.rope("halves"))
