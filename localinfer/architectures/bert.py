"""BERT (Devlin et al., 2018), and what is built like it: MiniLM, BGE, E5, GTE, RoBERTa, XLM-R, BGE-M3."""

from localinfer.plan.encoder import encoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """Learned positions; the exact GELU, and biases everywhere."""
    encoder(r, activation="gelu_erf", gated=False, positions=True)
