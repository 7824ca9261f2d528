"""GLM-4 (Zhipu AI, 2025): norms around each branch; gate and up are one matrix, and half of a head turns."""

from localinfer.plan.decoder import BEHIND_BRANCHES, Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """Biases are the file's."""
    decoder(r, Sight(r.rope("neighbours")), behind=BEHIND_BRANCHES)
