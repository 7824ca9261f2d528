"""MiniMax-M2 (MiniMax, 2025): norms over whole rows of queries and keys, rotary embeddings on a part of each head, and
many experts with a biased router."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with a sigmoid router, whose weights are normalized."""
    router = read_router(g, "sigmoid", normed=True)
    build_decoder(g, DecoderSpec(attention=AttentionSpec(g.rope("halves")), row_norm=True, router=router))
