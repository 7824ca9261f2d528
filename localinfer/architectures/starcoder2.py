"""StarCoder2 (BigCode, 2024): LayerNorms, a plain feed-forward network, biases everywhere."""

from localinfer.graph.attention import with_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.feed_forward import read_activation


def build(g: Builder[X]) -> None:
    """If there is a sliding window, all layers have it."""
    g.use_layer_norm()
    attention = with_window(g, AttentionSpec(g.rope("halves")))
    spec = DecoderSpec(attention=attention, activation=read_activation(g, "gelu"), gated=False)
    build_decoder(g, spec)
