"""Mistral Small 3 and Ministral 3 (Mistral AI, 2025): as llama, with YaRN, and queries that grow with
their position."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """As llama."""
    decoder(r, Sight(r.rope("neighbours")))
