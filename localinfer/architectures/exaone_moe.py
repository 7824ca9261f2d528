"""K-EXAONE (LG, 2026): as exaone4, with norms before the branches and many experts with a biased router."""

from localinfer.graph.attention import local_rope
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router

PATTERN = 4


def build(g: Builder[X]) -> None:
    """Decoder with a sigmoid router, dense first layers and a shared expert."""
    attention = local_rope(g, AttentionSpec(g.rope("halves"), head_norm="before_rope"), PATTERN)
    build_decoder(g, DecoderSpec(attention=attention, router=read_router(g, "sigmoid")))
