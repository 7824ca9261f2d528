"""VaultGemma (Google, 2025): gemma2 without the norms after the branches."""

from localinfer.architectures import gemma2
from localinfer.graph.builder import Builder, X
from localinfer.graph.decoder import NO_BRANCH_NORMS


def build(g: Builder[X]) -> None:
    """As Gemma 2."""
    gemma2.build(g, NO_BRANCH_NORMS)
