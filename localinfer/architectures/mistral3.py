"""Mistral Small 3 and Ministral 3 (Mistral AI, 2025): as Llama, with YaRN and attention temperature scaling."""

from localinfer.graph.attention import with_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """As Llama."""
    spec = DecoderSpec(attention=with_window(g, AttentionSpec(g.rope("interleaved"))))
    build_decoder(g, spec)
