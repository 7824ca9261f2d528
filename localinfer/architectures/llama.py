"""Llama (Touvron et al., 2023) and its relatives: Mistral, SmolLM2, TinyLlama, Yi, ...; Mixtral (Jiang et al., 2024)
has experts."""

from localinfer.graph.attention import warn_missing_window, with_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import has_experts, read_router

# Mistral 7B v0.1 (2023) and models trained from it; later versions have another RoPE base.
MISTRAL_0_1 = {"context_length": 32_768, "block_count": 32, "embedding_length": 4096, "feed_forward_length": 14_336}
MISTRAL_0_1_BASE, MISTRAL_0_1_WINDOW = 10_000.0, 4096


def build(g: Builder[X]) -> None:
    """Pre-norm attention and a SwiGLU feed-forward network on a residual stream."""
    spec = DecoderSpec(
        attention=with_window(g, AttentionSpec(g.rope("interleaved"))),
        router=read_router(g, normed=True) if has_experts(g) else None,
    )
    if is_mistral_0_1(g):
        warn_missing_window(g, MISTRAL_0_1_WINDOW)
    build_decoder(g, spec)


def is_mistral_0_1(g: Builder[X]) -> bool:
    """Return whether the model has the shape of Mistral 7B v0.1, whose files do not state the sliding window."""
    base = g.hparams.positive("rope.freq_base", MISTRAL_0_1_BASE)
    shaped = all(g.hparams.count(key, 0, minimum=0) == value for key, value in MISTRAL_0_1.items())
    return shaped and base == MISTRAL_0_1_BASE and not has_experts(g)
