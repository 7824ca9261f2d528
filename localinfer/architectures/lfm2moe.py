"""LFM2 MoE (Liquid AI, 2025): as lfm2, with a mixture of experts in all but the first layers."""

from localinfer.architectures import lfm2
from localinfer.graph.builder import Builder, X
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with a biased sigmoid router and normalized expert weights."""
    lfm2.build(g, read_router(g, "sigmoid", normed=True))
