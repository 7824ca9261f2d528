"""The encoder of T5 (Raffel et al., 2020) alone: Sentence-T5, and the text encoders of image models."""

from localinfer.graph.builder import Builder, X
from localinfer.graph.encoder_decoder import ENCODER_NORM, build_encoder_layers


def build(g: Builder[X]) -> None:
    """Encoder with relative position biases and pre-norm branches."""
    g.output.final_states(build_encoder_layers(g), ENCODER_NORM)
