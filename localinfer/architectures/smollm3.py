"""SmolLM3 (Hugging Face, 2025): as Llama, without RoPE in every fourth layer."""

from localinfer.graph.attention import with_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder

PATTERN = 4


def build(g: Builder[X]) -> None:
    """Every fourth layer has no rotary embedding (NoPE; Yang et al., 2025)."""
    with_rope, without_rope = with_window(g, AttentionSpec(g.rope("interleaved"))), with_window(g, AttentionSpec(None))
    spec = DecoderSpec(
        attention=[
            (without_rope if block % PATTERN == PATTERN - 1 else with_rope)[block] for block in range(g.block_count)
        ]
    )
    build_decoder(g, spec)
