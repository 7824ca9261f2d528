"""CodeShell (Peking University and WisdomShell, 2023): as StarCoder2, with fused queries, keys and values."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.feed_forward import read_activation


def build(g: Builder[X]) -> None:
    """Decoder with LayerNorms, an ungated feed-forward network and biases everywhere."""
    g.use_layer_norm()
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), activation=read_activation(g, "gelu"), gated=False)
    build_decoder(g, spec)
