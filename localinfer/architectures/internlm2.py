"""InternLM2 (Shanghai AI Laboratory, 2024): Llama whose checkpoints store queries, keys and values as one matrix."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As Llama."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("interleaved")))
    build_decoder(g, spec)
