"""Helium (Kyutai, 2025): like llama."""

from localinfer.architectures import llama
from localinfer.graph.builder import Builder, X


def build(g: Builder[X]) -> None:
    """As Llama; checkpoints have the rotated pairs side by side, as GGUF has them."""
    llama.build(g)
