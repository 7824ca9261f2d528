"""EmbeddingGemma (Google, 2025): Gemma 3 with bidirectional attention; sliding windows reach half a window to each
side."""

from localinfer.architectures import gemma3
from localinfer.graph.builder import Builder, X


def build(g: Builder[X]) -> None:
    """The embeddings are the hidden states after the last norm."""
    gemma3.build(g)
