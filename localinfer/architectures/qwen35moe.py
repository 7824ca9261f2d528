"""Qwen3.5 MoE (Alibaba, 2026): as qwen35, with experts and a gated shared expert."""

from localinfer.architectures import qwen35
from localinfer.graph.builder import Builder, X
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with normalized expert weights."""
    qwen35.build(g, read_router(g, normed=True))
