"""Llama Embed Nemotron (NVIDIA, 2025): Llama with bidirectional attention, for embeddings."""

from localinfer.architectures import llama
from localinfer.graph.builder import Builder, X


def build(g: Builder[X]) -> None:
    """The embeddings are the hidden states after the last norm."""
    llama.build(g)
