"""Llama (Touvron et al., 2023), and all that is built like it: Mistral, SmolLM2, TinyLlama, Yi, ...; Mixtral (Jiang et
al., 2024) has experts."""

from localinfer.plan.decoder import Sight, decoder
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """Pre-norm attention and a SwiGLU feed-forward network on a residual stream."""
    decoder(r, Sight(r.rope("neighbours")), router=r.router(normed=True) if r.has_experts else None)
