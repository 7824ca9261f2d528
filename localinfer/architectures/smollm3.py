"""SmolLM3 (Hugging Face, 2025): as Llama, without RoPE in every fourth layer."""

from dataclasses import replace

from localinfer.graph.attention import with_window
from localinfer.graph.builder import AttentionSpec, Builder, PerLayer, X
from localinfer.graph.decoder import DecoderSpec, build_decoder

PATTERN = 4


def build(g: Builder[X]) -> None:
    """Every fourth layer has no rotary embedding (NoPE; Yang et al., 2025)."""
    specs = enumerate(with_window(g, AttentionSpec(g.rope("interleaved"))).values)
    attention = [replace(spec, rope=None) if block % PATTERN == PATTERN - 1 else spec for block, spec in specs]
    build_decoder(g, DecoderSpec(attention=PerLayer(attention)))
