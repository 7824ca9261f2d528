"""InternLM2 (Shanghai AI Laboratory, 2024): llama, whose queries, keys and values were stored as one matrix."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """As llama."""
    decoder(r, Sight(r.rope("neighbours")))
