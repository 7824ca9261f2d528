"""Ling 3.0 (inclusionAI, 2026): as kimi-linear, with limited decays, one matrix for the decays and one for the gates of
KDA, and latent attention with rotary embeddings and a gate for each head."""

from localinfer.architectures.kimi_linear import delta_decoder
from localinfer.graph.builder import Builder, X
from localinfer.graph.properties.recurrence import read_kda


def build(g: Builder[X]) -> None:
    """Decoder with groups of experts; the file has the limit of the logarithms of decays."""
    if not g.hparams.flag("kda.safe_gate", True):
        raise g.hparams.unsupported("kda.safe_gate", "false")
    shape = read_kda(g.hparams, g.attention_heads[0].count, bounded=True)
    delta_decoder(g, shape, g.rope("interleaved"))
