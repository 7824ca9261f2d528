"""Mistral Small 4 (Mistral AI, 2026), the text model: as deepseek2; queries grow with their position."""

from localinfer.architectures.deepseek2 import latent_decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The weights of the chosen are their probabilities, normalised as the file says; a group is as good as its two
    best experts."""
    latent_decoder(r, r.router(best=2))
