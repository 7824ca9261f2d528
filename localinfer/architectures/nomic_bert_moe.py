"""Nomic Embed v2 (Nussbaum and Duderstadt, 2025): BERT with rotary embeddings, and a mixture of experts in every other
layer."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.encoder import build_encoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Encoder with exact GELU. Expert weights are the probabilities, not normalized."""
    g.hparams.accept("moe_every_n_layers")  # the router tensors determine which layers are mixtures
    build_encoder(g, AttentionSpec(g.rope("halves")), activation="gelu_erf", gated=False, router=read_router(g))
