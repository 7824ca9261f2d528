"""ERNIE 4.5 (Baidu, 2025), the dense models: as Llama."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As Llama."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("interleaved")))
    build_decoder(g, spec)
