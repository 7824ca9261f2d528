"""Mistral Small 4 (Mistral AI, 2026), the text model: as deepseek2, with attention temperature scaling."""

from localinfer.architectures.deepseek2 import latent_decoder
from localinfer.graph.builder import Builder, X
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """The router uses softmax, and the metadata specifies whether it normalizes the weights.

    Expert groups are ranked by the sum of their two best experts.
    """
    latent_decoder(g, read_router(g, best_per_group=2))
