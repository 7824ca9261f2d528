"""EmbeddingGemma (Google, 2025): Gemma 3 with bidirectional attention; sliding windows reach half a window to each
side."""

from localinfer.architectures import gemma3
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """The embeddings are the hidden states after the last norm."""
    gemma3.build(g)
