"""StarCoder2 (BigCode, 2024): LayerNorms, a plain feed-forward network, biases everywhere."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """All layers see everything, as llama.cpp has it: the window of the checkpoints has no key."""
    decoder(r, Sight(r.rope("halves")), activation="gelu", gated=False)
