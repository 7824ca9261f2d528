"""Mistral Small 4 (Mistral AI, 2026), the text model: as deepseek2, with attention temperature scaling."""

from localinfer.architectures.deepseek2 import latent_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """The router uses softmax, and the metadata says whether it normalises the weights. Expert groups are ranked by the
    sum of their two best experts."""
    latent_decoder(g, g.router(best_per_group=2))
