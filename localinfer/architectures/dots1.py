"""dots.llm1 (rednote, 2025): as qwen3moe, with shared experts, a dense first layer and a biased router."""

from localinfer.graph.attention import with_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with a sigmoid router, whose weights are normalized and scaled as the metadata specifies."""
    attention = with_window(g, AttentionSpec(g.rope("halves"), head_norm="before_rope"))
    build_decoder(g, DecoderSpec(attention=attention, router=read_router(g, "sigmoid", normed=True)))
