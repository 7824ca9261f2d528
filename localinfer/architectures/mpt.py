"""MPT (MosaicML, 2023): ALiBi in place of positions, LayerNorms and usually no biases."""

from localinfer.graph.attention import alibi
from localinfer.graph.builder import Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """Decoder with an ungated feed-forward network. Some models have learned positions."""
    g.use_layer_norm()
    positions = g.tensors.has("position_embd.weight")
    spec = DecoderSpec(attention=alibi(g, 0.0), activation="gelu_erf", gated=False, learned_positions=positions)
    build_decoder(g, spec)
