"""The text model of Qwen3-VL MoE (Alibaba, 2025): as qwen3vl, with many small experts."""

from localinfer.architectures.qwen3vl import build as build_qwen3vl
from localinfer.graph.builder import Builder, X
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """As qwen3vl, with normalized expert weights."""
    build_qwen3vl(g, read_router(g, normed=True))
