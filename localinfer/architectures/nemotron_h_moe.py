"""Nemotron 3 (NVIDIA, 2025; Nano, Super): as nemotron_h, with many small experts, whose choice is biased."""

from localinfer.architectures import nemotron_h
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The weights of the chosen are logistic functions, divided by their sum."""
    r.keys.name("moe_latent_size")  # which the shapes say as well
    nemotron_h.record(r, r.router("sigmoid", normed=True))
