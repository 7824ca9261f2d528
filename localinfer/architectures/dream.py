"""Dream (HKU and Huawei, 2025): qwen2 with attention in both directions. A
[diffusion language model](diffusion-models.md)."""

from localinfer.architectures import qwen2
from localinfer.graph.builder import Builder, X


def build(g: Builder[X]) -> None:
    """Predict the token after each position."""
    qwen2.build(g)
