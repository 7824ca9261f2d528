"""Baichuan (Baichuan, 2023): Llama. The model with 13B parameters has ALiBi in place of rotary embeddings. Files do not
state it: that model has 40 layers."""

from localinfer.graph.attention import alibi
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder

LAYERS_13B, MAX_ALIBI_BIAS = 40, 8.0


def build(g: Builder[X]) -> None:
    """As Llama, possibly with other positions."""
    attention = AttentionSpec(g.rope("interleaved"))
    if g.block_count == LAYERS_13B:
        attention = alibi(g, MAX_ALIBI_BIAS)
    build_decoder(g, DecoderSpec(attention=attention))
