"""LFM2 MoE (Liquid AI, 2025): as lfm2, with a mixture of experts in all but the first layers."""

from localinfer.architectures import lfm2
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """Decoder with a biased sigmoid router and normalised expert weights."""
    lfm2.build(g, g.router("sigmoid", normed=True))
