"""Granite 3 MoE (IBM, 2024): as granite, with a mixture of experts, and a shared expert in some models."""

from localinfer.architectures import granite
from localinfer.graph.builder import Builder, X
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with normalized expert weights."""
    granite.build(g, read_router(g, normed=True))
