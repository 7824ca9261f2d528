"""Granite 3 MoE (IBM, 2024): as granite, with a mixture of experts, and a shared expert in some models."""

from localinfer.architectures import granite
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """Decoder with normalised expert weights."""
    granite.build(g, g.router(normed=True))
