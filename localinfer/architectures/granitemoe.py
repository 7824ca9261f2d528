"""Granite 3 with experts (IBM, 2024): as granite, with a mixture, and a shared expert in some models."""

from localinfer.architectures import granite
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The weights of the chosen are divided by their sum."""
    granite.record(r, r.router(normed=True))
