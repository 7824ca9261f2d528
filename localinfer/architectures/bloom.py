"""BLOOM (BigScience, 2022): ALiBi in place of positions, LayerNorms, also of the embedding, biases everywhere."""

from localinfer.graph.attention import alibi
from localinfer.graph.builder import Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder

MAX_ALIBI_BIAS = 8.0


def build(g: Builder[X]) -> None:
    """Decoder with an ungated feed-forward network."""
    g.use_layer_norm()
    attention = alibi(g, MAX_ALIBI_BIAS)
    build_decoder(g, DecoderSpec(attention=attention, activation="gelu", gated=False, embedding_norm=True))
