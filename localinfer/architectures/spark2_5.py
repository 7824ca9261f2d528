"""Spark X2.5 (XHToken, 2026): Llama with GELU gates, a sigmoid gate for each head of the attention, and sliding-window
layers with other rotary embeddings."""

from dataclasses import replace

from localinfer.graph.attention import rope_swa, sliding_layers, sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder, gated_attention


def build(g: Builder[X]) -> None:
    """Decoder with fused queries, keys and values. The file specifies which layers have a sliding window."""
    full = AttentionSpec(g.rope("halves"))
    local = replace(full, rope=rope_swa(g, "halves", "rope.freq_base"), window=sliding_window(g))
    specs = sliding_layers(g, 0).choose(local, full)
    spec = DecoderSpec(attention=specs, activation="gelu_erf")
    build_decoder(g, spec, gated_attention(g, spec, "sigmoid"))
