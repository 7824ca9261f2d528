"""OLMo (Allen Institute for AI, 2024): Llama with LayerNorms without weights. Some models limit the magnitudes of
queries, keys and values."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As Llama, with other norms."""
    g.use_layer_norm(weights=False)
    build_decoder(g, DecoderSpec(attention=AttentionSpec(g.rope("interleaved"))))
