"""BERT (Devlin et al., 2018) and its relatives: MiniLM, BGE, E5, GTE, DistilBERT, RoBERTa, XLM-R, BGE-M3."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.encoder import build_encoder


def build(g: Builder[X]) -> None:
    """Encoder with learned positions, exact GELU and biases on all matrices."""
    build_encoder(g, AttentionSpec(None), activation="gelu_erf", gated=False, positions=True)
