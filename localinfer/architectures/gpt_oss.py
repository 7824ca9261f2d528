"""gpt-oss (OpenAI, 2025): experts with biases, alternating sliding windows, and a learned attention sink per head."""

from dataclasses import replace

from localinfer.graph.attention import sliding_layers, sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router

NORMS = {"attention": "attn_norm", "feed_forward": "post_attention_norm"}
PATTERN = 2  # every second layer has full attention


def build(g: Builder[X]) -> None:
    """Expert weights are the softmax of the chosen logits. All layers have the same rotary embedding."""
    full = AttentionSpec(g.rope("halves", truncate=False), sinks=True)
    local = replace(full, window=sliding_window(g))
    spec = DecoderSpec(
        attention=sliding_layers(g, PATTERN).choose(local, full),
        activation="clamped_swiglu",
        pre_norms=NORMS,
        router=read_router(g, "softmax_of_chosen"),
    )
    build_decoder(g, spec)
