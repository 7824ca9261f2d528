"""Jais (Inception and MBZUAI, 2023): ALiBi, LayerNorms, biases everywhere, and scores that are divided by the length
of a head instead of its square root."""

from dataclasses import replace

from localinfer.graph.attention import alibi
from localinfer.graph.builder import Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """Decoder with fused queries, keys and values."""
    g.use_layer_norm()
    size = g.attention_heads[0].key
    build_decoder(g, DecoderSpec(attention=replace(alibi(g, 8.0), scale=1 / size)))
