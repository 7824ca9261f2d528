"""StarCoder and SantaCoder (BigCode, 2023): as GPT-2, with multi-query attention."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.feed_forward import read_activation


def build(g: Builder[X]) -> None:
    """Decoder with learned positions and no rotary embedding."""
    g.use_layer_norm()
    activation = read_activation(g, "gelu")
    spec = DecoderSpec(attention=AttentionSpec(None), activation=activation, gated=False, learned_positions=True)
    build_decoder(g, spec)
