"""Qwen3-Next (Alibaba, 2025): as qwen35moe, but value heads that share a key head are adjacent."""

from localinfer.architectures import qwen35
from localinfer.graph.builder import Builder, X
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with normalized expert weights."""
    qwen35.build(g, read_router(g, normed=True), repeat_interleave=True)
