"""PLM (Deng et al., 2025): latent attention, and an ungated feed-forward network with squared ReLU."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As AFM, but for attention, whose keys and values come from latent vectors."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("interleaved")), activation="relu_squared", gated=False)
    build_decoder(g, spec)
