"""Nemotron 3 (NVIDIA, 2025; Nano, Super): as nemotron_h, with many small experts and a biased router."""

from localinfer.architectures import nemotron_h
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """Decoder with a sigmoid router and normalised expert weights."""
    g.hparams.accept("moe_latent_size")  # the tensor shapes have it, too
    nemotron_h.build(g, g.router("sigmoid", normed=True))
