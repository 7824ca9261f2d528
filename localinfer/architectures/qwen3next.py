"""Qwen3-Next (Alibaba, 2025): as qwen35moe, but value heads that share a key head are adjacent."""

from localinfer.architectures import qwen35
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """Decoder with normalised expert weights."""
    qwen35.build(g, g.router(normed=True), repeat_interleave=True)
