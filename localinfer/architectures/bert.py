"""BERT (Devlin et al., 2018) and its relatives: MiniLM, BGE, E5, GTE, RoBERTa, XLM-R, BGE-M3."""

from localinfer.graph.encoder import encoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """Encoder with learned positions, exact GELU and biases on all matrices."""
    encoder(g, activation="gelu_erf", gated=False, positions=True)
