"""MiniCPM3 (OpenBMB, 2024): as minicpm, with latent attention and NeoX-style rotary embeddings."""

from localinfer.architectures import minicpm
from localinfer.graph.builder import Builder, X


def build(g: Builder[X]) -> None:
    """Files do not have the scales as metadata, unless they are others than those of the published model."""
    minicpm.build(g, "halves")
