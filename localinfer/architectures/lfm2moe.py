"""LFM2 with experts (Liquid AI, 2025): as lfm2, but all blocks behind the first ones have a mixture."""

from localinfer.architectures import lfm2
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The choice is biased; the weights of the chosen are logistic functions, divided by their sum."""
    lfm2.record(r, r.router("sigmoid", normed=True))
