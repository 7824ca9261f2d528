"""RND1 (Radical Numerics, 2025): qwen3moe with attention in both directions. A
[diffusion language model](diffusion-models.md)."""

from localinfer.architectures import qwen3moe
from localinfer.graph.builder import Builder, X


def build(g: Builder[X]) -> None:
    """Predict the token after each position."""
    qwen3moe.build(g)
