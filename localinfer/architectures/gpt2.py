"""GPT-2 (Radford et al., 2019): learned positions, LayerNorms, a plain feed-forward network, biases everywhere."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """Decoder with learned positions and no rotary embedding."""
    g.use_layer_norm()
    spec = DecoderSpec(attention=AttentionSpec(None), activation="gelu", gated=False, learned_positions=True)
    build_decoder(g, spec)
