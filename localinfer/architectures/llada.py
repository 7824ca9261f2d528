"""LLaDA (Nie et al., 2025): llama with attention in both directions. A
[diffusion language model](diffusion-models.md)."""

from localinfer.architectures import llama
from localinfer.graph.builder import Builder, X


def build(g: Builder[X]) -> None:
    """Predict the token at each position."""
    llama.build(g)
