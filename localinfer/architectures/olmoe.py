"""OLMoE (Muennighoff et al., 2024): norms over whole rows of queries and keys, and many small experts."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Expert weights are the probabilities, not normalized."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), row_norm=True, router=read_router(g))
    build_decoder(g, spec)
