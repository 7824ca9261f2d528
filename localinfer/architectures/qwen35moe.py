"""Qwen3.5 MoE (Alibaba, 2026): as qwen35, with experts and a gated shared expert."""

from localinfer.architectures import qwen35
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """Decoder with normalised expert weights."""
    qwen35.build(g, g.router(normed=True))
