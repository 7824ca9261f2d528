"""Llama (Touvron et al., 2023) and its relatives: Mistral, SmolLM2, TinyLlama, Yi, ...; Mixtral (Jiang et al., 2024)
has experts."""

from localinfer.graph.attention import with_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import has_experts, read_router


def build(g: Builder[X]) -> None:
    """Pre-norm attention and a SwiGLU feed-forward network on a residual stream."""
    spec = DecoderSpec(
        attention=with_window(g, AttentionSpec(g.rope("interleaved"))),
        router=read_router(g, normed=True) if has_experts(g) else None,
    )
    build_decoder(g, spec)
