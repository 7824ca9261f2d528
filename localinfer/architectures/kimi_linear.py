"""Kimi Linear (Kimi Team, 2025): Kimi Delta Attention (KDA) in most layers, latent attention without rotary embeddings
in the others, and many small experts."""

from localinfer.graph.builder import AttentionSpec, Builder, Recurrence, Rope, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.delta_attention import delta_mixer
from localinfer.graph.mixture_of_experts import read_router
from localinfer.graph.properties.recurrence import read_kda


def build(g: Builder[X]) -> None:
    """Decoder whose decays have no limit."""
    delta_decoder(g, read_kda(g.hparams, g.attention_heads[0].count, bounded=False), None)


def delta_decoder(g: Builder[X], shape: Recurrence, rope: Rope | None) -> None:
    """Build a decoder with a sigmoid router."""
    router = read_router(g, "sigmoid", normed=True)
    spec = DecoderSpec(attention=AttentionSpec(rope), router=router, mtp_states="normed")
    build_decoder(g, spec, delta_mixer(g, shape, rope))
