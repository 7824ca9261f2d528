"""GPT-2 (Radford et al., 2019): learned positions, LayerNorms, a plain feed-forward network, biases everywhere."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """Decoder with learned positions and no rotary embedding."""
    spec = DecoderSpec(attention=AttentionSpec(None), activation="gelu", gated=False, learned_positions=True)
    build_decoder(g, spec)
