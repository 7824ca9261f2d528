"""Phi-3.5-MoE (Microsoft, 2024): as phi3, with LayerNorms, biases and a mixture of its own kind."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The file has its epsilon by the name of the other norm's. All layers have the window, if there is one."""
    r.by_mean = True
    decoder(r, Sight(r.rope("halves"), r.sliding_window()), router=r.router("sparse_mixer"))
