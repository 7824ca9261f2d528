"""Gemma (Google, 2024): as llama, with a scaled embedding, gates of gelu, and long heads."""

import math

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The embedding is scaled by sqrt(n)."""
    decoder(r, Sight(r.rope("halves")), activation="gelu", embedding_scale=math.sqrt(r.embedding_length))
