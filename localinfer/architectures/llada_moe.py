"""LLaDA-MoE (inclusionAI and Renmin University, 2025): olmoe with attention in both directions and normalized heads. A
[diffusion language model](diffusion-models.md)."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Predict the token at each position. Expert weights are the probabilities, not normalized."""
    attention = AttentionSpec(g.rope("halves"), head_norm="before_rope")
    build_decoder(g, DecoderSpec(attention=attention, router=read_router(g)))
