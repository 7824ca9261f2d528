"""XVERSE (Shenzhen Yuanxiang, 2023): as Llama."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As Llama."""
    build_decoder(g, DecoderSpec(attention=AttentionSpec(g.rope("interleaved"))))
